/* A batching strategy for tests: requests join while the sum of their first numbers keeps within a limit, the model parameter LIMIT. The id of a
 * request may ask for misbehaviour. Notes go to a journal; they are those of one thread at a time, as the calls are. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

static char journal[4096];

/* The notes since the last call. */
const char* strategy_journal(void);
const char* strategy_journal(void) {
  static char taken[sizeof journal];
  memcpy(taken, journal, sizeof journal);
  journal[0] = 0;
  return taken;
}

static void note(const char* what, const char* text) {
  size_t used = strlen(journal);
  snprintf(journal + used, sizeof journal - used, "%s%s\n", what, text);
}

/* Notes an error and deletes it. */
static void note_error(const char* what, struct TRITONSERVER_Error* error) {
  note(what, error == NULL ? "no error" : TRITONSERVER_ErrorMessage(error));
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(struct TRITONBACKEND_Batcher** batcher, struct TRITONBACKEND_Model* model) {
  struct TRITONSERVER_Message* message;
  struct TRITONSERVER_Error* error = TRITONBACKEND_ModelConfig(model, 1, &message);
  if (error != NULL) return error;
  const char* json;
  size_t size;
  error = TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  if (error != NULL) return error;
  /* Long enough for the models of the tests; the text need not end with NUL. */
  char* text = calloc(1, size + 1);
  memcpy(text, json, size);
  static const char key[] = "\"LIMIT\":{\"string_value\":\"";
  const char* found = strstr(text, key);
  int32_t* limit = malloc(sizeof *limit);
  *limit = found == NULL ? 0 : atoi(found + sizeof key - 1);
  free(text);
  TRITONSERVER_MessageDelete(message);
  *batcher = (struct TRITONBACKEND_Batcher*)limit;
  note("begin model", "");
  if (*limit < 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "LIMIT must not be negative");
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(struct TRITONBACKEND_Batcher* batcher) {
  free(batcher);
  note("end model", "");
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const struct TRITONBACKEND_Batcher* batcher, void** userp) {
  int32_t* left = malloc(sizeof *left);
  *left = *(const int32_t*)batcher;
  *userp = left;
  note("begin", "");
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  free(userp);
  note("end", "");
  return NULL;
}

/* What only a backend may do, and only when it executes the request. */
static void meddle(struct TRITONBACKEND_Request* request) {
  struct TRITONBACKEND_Response* response = NULL;
  struct TRITONBACKEND_ResponseFactory* factory = NULL;
  note_error("response: ", TRITONBACKEND_ResponseNew(&response, request));
  note_error("factory: ", TRITONBACKEND_ResponseFactoryNew(&factory, request));
  note_error("release: ", TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(struct TRITONBACKEND_Request* request, void* userp, bool* should_include) {
  const char* id;
  struct TRITONSERVER_Error* error = TRITONBACKEND_RequestId(request, &id);
  if (error != NULL) return error;
  if (strcmp(id, "fail") == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "cannot decide");
  if (strcmp(id, "insist") == 0) {
    *should_include = true;
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "included all the same");
  }
  if (strcmp(id, "meddle") == 0) meddle(request);
  struct TRITONBACKEND_Input* input;
  error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (error != NULL) return error;
  const void* buffer;
  uint64_t size;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  uint32_t count;
  error = TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, NULL, &count);
  if (error != NULL) return error;
  int32_t number = 0;
  uint32_t filled = 0;
  for (uint32_t index = 0; index < count && filled < sizeof number; ++index) {
    error = TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &memory_type, &memory_type_id);
    if (error != NULL) return error;
    size_t part = size < sizeof number - filled ? size : sizeof number - filled;
    memcpy((char*)&number + filled, buffer, part);
    filled += part;
  }
  int32_t* left = userp;
  *should_include = number <= *left;
  if (*should_include) *left -= number;
  note(*should_include ? "joins " : "stays ", id);
  return NULL;
}
