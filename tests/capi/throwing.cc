// An embedder whose callbacks throw, or return errors where they can: each becomes an error of its request or a line of the log, and the
// server serves on.
//
//   throwing LIBRARY REPOSITORY BACKENDS
//
// REPOSITORY has `identity` and `caller` (of caller.c, which asks where its output would lie), FP32 [-1].

#include <semaphore.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "api.h"

namespace {

struct Wait {
  sem_t answered, released, traced;
  std::string error, told;
  // The allocator's function that fails: the others do what they should, but for those that can only be complained of.
  std::string failing;
  bool throws;
};

// How many buffers are with the server.
std::atomic<int> buffers{0};

TRITONSERVER_Error* Fail(bool throws, const char* message) {
  if (throws) throw std::runtime_error(message);
  return TS(ErrorNew)(TRITONSERVER_ERROR_UNAVAILABLE, message);
}

TRITONSERVER_Error* Step(void* userp, const char* name) {
  const Wait* wait = static_cast<Wait*>(userp);
  if (wait->failing != name) return nullptr;
  return Fail(wait->throws, (std::string("no ") + name + " today").c_str());
}

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t bytes, TRITONSERVER_MemoryType, int64_t, void* userp,
                             void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* type, int64_t* id) {
  TRITONSERVER_Error* error = Step(userp, "memory");
  if (error != nullptr) return error;
  *buffer = malloc(bytes + 1);
  *buffer_userp = userp;
  buffers++;
  *type = TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return nullptr;
}

TRITONSERVER_Error* Free(TRITONSERVER_ResponseAllocator*, void* buffer, void* buffer_userp, size_t, TRITONSERVER_MemoryType, int64_t) {
  free(buffer);
  buffers--;
  if (static_cast<Wait*>(buffer_userp)->throws) throw "free";
  return TS(ErrorNew)(TRITONSERVER_ERROR_INTERNAL, "free");
}

TRITONSERVER_Error* Start(TRITONSERVER_ResponseAllocator*, void* userp) {
  if (static_cast<Wait*>(userp)->throws) throw 3;
  return TS(ErrorNew)(TRITONSERVER_ERROR_INTERNAL, "start");
}

TRITONSERVER_Error* Attributes(TRITONSERVER_ResponseAllocator*, const char*, TRITONSERVER_BufferAttributes*, void* userp, void*) {
  return Step(userp, "attributes");
}

TRITONSERVER_Error* Query(TRITONSERVER_ResponseAllocator*, void* userp, const char*, size_t*, TRITONSERVER_MemoryType*, int64_t*) {
  return Step(userp, "query");
}

void OnResponse(TRITONSERVER_InferenceResponse* response, const uint32_t, void* userp) {
  Wait* wait = static_cast<Wait*>(userp);
  TRITONSERVER_Error* error = TS(InferenceResponseError)(response);
  wait->error = error == nullptr ? "" : TS(ErrorMessage)(error);
  uint32_t count = 0;
  OK(TS(InferenceResponseParameterCount)(response, &count));
  for (uint32_t index = 0; index < count; index++) {
    const char* name;
    TRITONSERVER_ParameterType type;
    const void* value;
    OK(TS(InferenceResponseParameter)(response, index, &name, &type, &value));
    if (strcmp(name, "query_error") == 0) wait->told = static_cast<const char*>(value);
  }
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

void OnTensor(TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTraceActivity, const char*, TRITONSERVER_DataType, const void*, size_t,
              const int64_t*, uint64_t, TRITONSERVER_MemoryType, int64_t, void*) {
  throw std::logic_error("tensor");
}

void OnTraceRelease(TRITONSERVER_InferenceTrace* trace, void* userp) {
  OK(TS(InferenceTraceDelete)(trace));
  sem_post(&static_cast<Wait*>(userp)->traced);
  throw std::logic_error("trace release");
}

// What the request ended with, and what its backend was told.
std::pair<std::string, std::string> Run(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const char* model,
                                        const char* failing, bool throws) {
  static const float input[] = {1, 2};
  static const int64_t shape[] = {2};
  Wait wait = {};
  wait.failing = failing;
  wait.throws = throws;
  for (sem_t* semaphore : {&wait.answered, &wait.released, &wait.traced}) sem_init(semaphore, 0, 0);
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_InferenceTrace* trace = nullptr;
  OK(TS(InferenceRequestNew)(&request, server, model, -1));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", input, sizeof input, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestSetReleaseCallback)(request, OnRelease, &wait));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, &wait, OnResponse, &wait));
  const auto level = static_cast<TRITONSERVER_InferenceTraceLevel>(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS);
  OK(TS(InferenceTraceTensorNew)(&trace, level, 0, OnActivity, OnTensor, OnTraceRelease, &wait));
  OK(TS(ServerInferAsync)(server, request, trace));
  for (sem_t* semaphore : {&wait.answered, &wait.released, &wait.traced}) sem_wait(semaphore);
  EXPECT(buffers == 0);
  return {wait.error, wait.told};
}

void ExpectIn(const std::string& part, const std::string& text) {
  if (text.find(part) == std::string::npos) FAIL("no %s in %s", part.c_str(), text.c_str());
}

}  // namespace

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  TRITONSERVER_Server* server = api_start("throwing", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  OK(TS(ResponseAllocatorNew)(&allocator, Allocate, Free, Start));
  OK(TS(ResponseAllocatorSetBufferAttributesFunction)(allocator, Attributes));
  OK(TS(ResponseAllocatorSetQueryFunction)(allocator, Query));
  for (int round = 0; round < 4; round++) {
    const bool throws = round % 2 == 0;
    ExpectIn("no memory today", Run(server, allocator, "identity", "memory", throws).first);
    ExpectIn("no attributes today", Run(server, allocator, "identity", "attributes", throws).first);
    EXPECT(Run(server, allocator, "identity", "", throws).first.empty());
  }
  // The backend hears of it, and answers all the same.
  for (bool throws : {true, false}) {
    auto outcome = Run(server, allocator, "caller", "query", throws);
    EXPECT(outcome.first.empty());
    ExpectIn("no query today", outcome.second);
  }
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  puts("ok");
  return 0;
}
