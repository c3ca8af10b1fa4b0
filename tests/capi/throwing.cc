// An embedder whose callbacks throw: each becomes an error of its request or a line of the log, and the server serves on.
//
//   throwing LIBRARY REPOSITORY BACKENDS
//
// REPOSITORY has `identity` (FP32 [-1]).

#include <semaphore.h>

#include <stdexcept>
#include <string>

#include "api.h"

namespace {

struct Wait {
  sem_t answered, released, traced;
  std::string error;
  bool throws_in_alloc;
};

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t bytes, TRITONSERVER_MemoryType, int64_t, void* userp,
                             void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* type, int64_t* id) {
  if (static_cast<Wait*>(userp)->throws_in_alloc) throw std::runtime_error("no memory today");
  *buffer = malloc(bytes + 1);
  *buffer_userp = nullptr;
  *type = TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return nullptr;
}

TRITONSERVER_Error* Free(TRITONSERVER_ResponseAllocator*, void* buffer, void*, size_t, TRITONSERVER_MemoryType, int64_t) {
  free(buffer);
  throw "free";
}

TRITONSERVER_Error* Start(TRITONSERVER_ResponseAllocator*, void*) { throw 3; }

void OnResponse(TRITONSERVER_InferenceResponse* response, const uint32_t, void* userp) {
  Wait* wait = static_cast<Wait*>(userp);
  TRITONSERVER_Error* error = TS(InferenceResponseError)(response);
  wait->error = error == nullptr ? "" : TS(ErrorMessage)(error);
  if (error != nullptr) TS(ErrorDelete)(error);
  OK(TS(InferenceResponseDelete)(response));
  sem_post(&wait->answered);
  throw std::logic_error("response");
}

void OnRelease(TRITONSERVER_InferenceRequest* request, const uint32_t, void* userp) {
  OK(TS(InferenceRequestDelete)(request));
  sem_post(&static_cast<Wait*>(userp)->released);
  throw std::logic_error("release");
}

void OnActivity(TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTraceActivity, uint64_t, void*) { throw std::logic_error("activity"); }

void OnTraceRelease(TRITONSERVER_InferenceTrace* trace, void* userp) {
  OK(TS(InferenceTraceDelete)(trace));
  sem_post(&static_cast<Wait*>(userp)->traced);
  throw std::logic_error("trace release");
}

std::string Run(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, bool throws_in_alloc) {
  static const float input[] = {1, 2};
  static const int64_t shape[] = {2};
  Wait wait = {};
  wait.throws_in_alloc = throws_in_alloc;
  for (sem_t* semaphore : {&wait.answered, &wait.released, &wait.traced}) sem_init(semaphore, 0, 0);
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_InferenceTrace* trace = nullptr;
  OK(TS(InferenceRequestNew)(&request, server, "identity", -1));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", input, sizeof input, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestSetReleaseCallback)(request, OnRelease, &wait));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, &wait, OnResponse, &wait));
  OK(TS(InferenceTraceNew)(&trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, OnActivity, OnTraceRelease, &wait));
  OK(TS(ServerInferAsync)(server, request, trace));
  for (sem_t* semaphore : {&wait.answered, &wait.released, &wait.traced}) sem_wait(semaphore);
  return wait.error;
}

}  // namespace

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  TRITONSERVER_Server* server = api_start("throwing", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  OK(TS(ResponseAllocatorNew)(&allocator, Allocate, Free, Start));
  for (int round = 0; round < 3; round++) {
    std::string error = Run(server, allocator, true);
    if (error.find("no memory today") == std::string::npos) FAIL("%s", error.c_str());
    error = Run(server, allocator, false);
    if (!error.empty()) FAIL("%s", error.c_str());
  }
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  puts("ok");
  return 0;
}
