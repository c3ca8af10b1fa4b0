// A backend that computes with OpenMP, whose runtime wants thread-local storage of the kind that is scarce once threads exist: OUTPUT0
// repeats INPUT0, four bytes per iteration of a parallel loop.
#include <string.h>

#include "triton/core/tritonbackend.h"

typedef struct TRITONSERVER_Error Error;

#define RETURN_IF_ERROR(call)              \
  do {                                     \
    Error* failed = (call);                \
    if (failed != NULL) return failed;     \
  } while (0)

static _Thread_local unsigned long steps;

static Error* Repeat(struct TRITONBACKEND_Request* request, struct TRITONBACKEND_Response* response) {
  struct TRITONBACKEND_Input* input;
  struct TRITONBACKEND_Output* output;
  TRITONSERVER_DataType data_type;
  const int64_t* shape;
  uint32_t rank, pieces;
  uint64_t bytes;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, "INPUT0", &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, &data_type, &shape, &rank, &bytes, &pieces));
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", data_type, shape, rank));
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  void* target;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &target, bytes, &type, &id));
  uint64_t done = 0;
  for (uint32_t index = 0; index < pieces; index++) {
    const void* piece;
    uint64_t size;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, index, &piece, &size, &type, &id));
#pragma omp parallel for num_threads(2)
    for (uint64_t at = 0; at < size; at += 4) {
      memcpy((char*)target + done + at, (const char*)piece + at, size - at < 4 ? size - at : 4);
      steps++;
    }
    done += size;
  }
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
                                          const uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; index++) {
    struct TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[index]));
    Error* error = Repeat(requests[index], response);
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
    RETURN_IF_ERROR(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
