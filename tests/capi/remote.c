// Repositories by URI, at the start and by registration.
//
//   remote LIBRARY REPOSITORY BACKENDS OTHER_REPOSITORY EMPTY_REPOSITORY
//
// REPOSITORY has `identity`, OTHER_REPOSITORY `second`, in EMPTY_REPOSITORY lies nothing. All are URIs of object stores.

#define _GNU_SOURCE
#include "api.h"

static void expect_ready(TRITONSERVER_Server* server, const char* model) {
  bool is_ready = false;
  OK(TS(ServerModelIsReady)(server, model, -1, &is_ready));
  EXPECT(is_ready);
}

static void expect_in_index(TRITONSERVER_Server* server, const char* text) {
  TRITONSERVER_Message* message;
  OK(TS(ServerModelIndex)(server, 0, &message));
  const char* base;
  size_t size;
  OK(TS(MessageSerializeToJson)(message, &base, &size));
  if (memmem(base, size, text, strlen(text)) == NULL) FAIL("%s is not in %.*s", text, (int)size, base);
  OK(TS(MessageDelete)(message));
}

int main(int argc, char** argv) {
  if (argc != 6) FAIL("usage: remote LIBRARY REPOSITORY BACKENDS OTHER_REPOSITORY EMPTY_REPOSITORY");
  api_open(argv[1]);
  const char *repository = argv[2], *backends = argv[3], *other = argv[4], *empty = argv[5];
  // All models, at once.
  TRITONSERVER_Server* server = api_start("none", repository, backends, TRITONSERVER_MODEL_CONTROL_NONE);
  expect_ready(server, "identity");
  REFUSED(TS(ServerRegisterModelRepository)(server, other, NULL, 0), TRITONSERVER_ERROR_UNSUPPORTED, "repository registration is not allowed");
  OK(TS(ServerDelete)(server));
  // By hand, and under another name.
  server = api_start("explicit", repository, backends, TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  OK(TS(ServerLoadModel)(server, "identity"));
  expect_ready(server, "identity");
  REFUSED(TS(ServerLoadModel)(server, "renamed"), TRITONSERVER_ERROR_INTERNAL, "failed to load 'renamed'");
  REFUSED(TS(ServerRegisterModelRepository)(server, empty, NULL, 0), TRITONSERVER_ERROR_INVALID_ARG, "failed to register '");
  TRITONSERVER_Parameter* mapping = TS(ParameterNew)("second", TRITONSERVER_PARAMETER_STRING, "renamed");
  const TRITONSERVER_Parameter* mappings[] = {mapping};
  OK(TS(ServerRegisterModelRepository)(server, other, mappings, 1));
  REFUSED(TS(ServerRegisterModelRepository)(server, other, NULL, 0), TRITONSERVER_ERROR_ALREADY_EXISTS, "model repository '");
  TS(ParameterDelete)(mapping);
  expect_in_index(server, "\"name\":\"renamed\"");
  OK(TS(ServerLoadModel)(server, "renamed"));
  expect_ready(server, "renamed");
  OK(TS(ServerUnloadModel)(server, "renamed"));
  OK(TS(ServerUnregisterModelRepository)(server, other));
  REFUSED(TS(ServerLoadModel)(server, "renamed"), TRITONSERVER_ERROR_INTERNAL, "failed to load 'renamed'");
  OK(TS(ServerDelete)(server));
  puts("done");
  return 0;
}
