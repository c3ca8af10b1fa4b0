/* A backend with an implicit state: it sums up what the requests of a sequence bring, from STATE_IN to STATE_OUT. The id of a request may ask for
 * something else. Each response carries, as its parameter, what the calls about the state said. */

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

/* One per thread: tests run side by side, each with an instance of its own. */
static _Thread_local char report[1024];

static void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t used = strlen(report);
  vsnprintf(report + used, sizeof report - used, format, arguments);
  va_end(arguments);
}

/* Says an error and deletes it; whether there was one. */
static bool failed(const char* what, struct TRITONSERVER_Error* error) {
  if (error == NULL) return false;
  say("%s: %s;", what, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  return true;
}

/* The first number of an input, and how many bytes it has; 0 without it. */
static int32_t number_of(struct TRITONBACKEND_Request* request, const char* name, uint64_t* bytes) {
  struct TRITONBACKEND_Input* input;
  *bytes = 0;
  if (failed("input", TRITONBACKEND_RequestInput(request, name, &input))) return 0;
  uint32_t count;
  if (failed("properties", TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, bytes, &count))) return 0;
  int32_t number = 0;
  size_t filled = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const void* buffer;
    uint64_t size;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    if (failed("buffer", TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &type, &id))) return 0;
    size_t part = size < sizeof number - filled ? size : sizeof number - filled;
    memcpy((char*)&number + filled, buffer, part);
    filled += part;
  }
  return number;
}

static struct TRITONBACKEND_State* state_of(struct TRITONBACKEND_Request* request, const char* name, int64_t count) {
  struct TRITONBACKEND_State* state = NULL;
  const int64_t shape[] = {1, count};
  failed("new", TRITONBACKEND_StateNew(&state, request, name, TRITONSERVER_TYPE_INT32, shape, 2));
  return state;
}

static int32_t* buffer_of(struct TRITONBACKEND_State* state, uint64_t bytes) {
  void* buffer = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t id = 3;
  if (failed("buffer", TRITONBACKEND_StateBuffer(state, &buffer, bytes, &type, &id))) return NULL;
  if (type != TRITONSERVER_MEMORY_CPU || id != 0) say("in memory %d/%d;", (int)type, (int)id);
  return buffer;
}

static void say_attributes(struct TRITONBACKEND_State* state) {
  struct TRITONSERVER_BufferAttributes* attributes;
  size_t bytes;
  TRITONSERVER_MemoryType type;
  if (failed("attributes", TRITONBACKEND_StateBufferAttributes(state, &attributes))) return;
  if (failed("size", TRITONSERVER_BufferAttributesByteSize(attributes, &bytes))) return;
  if (failed("type", TRITONSERVER_BufferAttributesMemoryType(attributes, &type))) return;
  say("attributes %zu/%d;", bytes, (int)type);
}

static int32_t add_up(struct TRITONBACKEND_Request* request, const char* id) {
  uint64_t bytes;
  int32_t sum = number_of(request, "IN", &bytes) + number_of(request, "STATE_IN", &bytes);
  say("found %d bytes;", (int)bytes);
  if (strcmp(id, "unknown") == 0) {
    state_of(request, "STATE_IN", 1);
    failed("null", TRITONBACKEND_StateUpdate(NULL));
    failed("kind", TRITONBACKEND_StateUpdate((struct TRITONBACKEND_State*)request));
    return sum;
  }
  /* What the model keeps of each sequence may grow. */
  int64_t count = strcmp(id, "grow") == 0 ? 3 : 1;
  struct TRITONBACKEND_State* state = state_of(request, "STATE_OUT", count);
  if (state == NULL) return sum;
  say_attributes(state);
  int32_t* buffer = buffer_of(state, 4 * (uint64_t)count);
  if (buffer == NULL) return sum;
  for (int64_t index = 0; index < count; ++index) buffer[index] = sum;
  say_attributes(state);
  if (strcmp(id, "again") == 0) {
    if (buffer_of(state, 4) != buffer) say("another buffer;");
    if (state_of(request, "STATE_OUT", 1) != state) say("another state;");
    buffer_of(state, 1ull << 60);
  }
  if (strcmp(id, "forget") == 0) return sum;
  failed("update", TRITONBACKEND_StateUpdate(state));
  if (strcmp(id, "twice") == 0) failed("second update", TRITONBACKEND_StateUpdate(state));
  return sum;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; ++index) {
    const char* id = "";
    report[0] = 0;
    failed("id", TRITONBACKEND_RequestId(requests[index], &id));
    int32_t sum = add_up(requests[index], id);
    struct TRITONBACKEND_Response* response = NULL;
    struct TRITONBACKEND_Output* output = NULL;
    const int64_t shape[] = {1, 1};
    void* buffer = NULL;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    if (!failed("response", TRITONBACKEND_ResponseNew(&response, requests[index])) &&
        !failed("output", TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_INT32, shape, 2)) &&
        !failed("output buffer", TRITONBACKEND_OutputBuffer(output, &buffer, sizeof sum, &type, &type_id))) {
      memcpy(buffer, &sum, sizeof sum);
      failed("parameter", TRITONBACKEND_ResponseSetStringParameter(response, "said", report));
      failed("send", TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    }
    failed("release", TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
