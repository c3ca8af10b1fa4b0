// Requests from the sides of their trace, of the backend that executes them (caller.c), and of the clock.
//
//   views LIBRARY REPOSITORY BACKENDS
//
// REPOSITORY has `identity` (FP32 [-1], delays by parameter), `caller` (of caller.c), and `hurried` (an identity model whose queue
// rejects after 50 ms).

#include <unistd.h>

#include "inference.h"

struct Trail {
  int count, tensors, releases;
  TRITONSERVER_InferenceTraceActivity seen[32];
  uint64_t last_ns;
  sem_t over;
};

static void on_activity(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t ns, void* userp) {
  struct Trail* trail = userp;
  if (activity != TRITONSERVER_TRACE_CUSTOM_ACTIVITY) {
    const char* text;
    int64_t version;
    OK(TS(InferenceTraceRequestId)(trace, &text));
    OK(TS(InferenceTraceModelVersion)(trace, &version));
    EXPECT(strcmp(text, "traced") == 0 && version == 1);
  }
  EXPECT(ns >= trail->last_ns || activity == TRITONSERVER_TRACE_CUSTOM_ACTIVITY);
  if (activity != TRITONSERVER_TRACE_CUSTOM_ACTIVITY) trail->last_ns = ns;
  trail->seen[trail->count++] = activity;
}

// Of several traces at once, whose times are not in one order.
static void on_any_activity(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t ns, void* userp) {
  (void)ns, (void)userp;
  const char* text;
  OK(TS(InferenceTraceModelName)(trace, &text));
  EXPECT(strcmp(text, "caller") == 0 || strcmp(text, "identity") == 0);
  if (activity != TRITONSERVER_TRACE_CUSTOM_ACTIVITY) return;
  OK(TS(InferenceTraceContext)(trace, &text));
  EXPECT(strcmp(text, "{\"11\":\"called\"}") == 0);
}

static void on_tensor(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, const char* name,
                      TRITONSERVER_DataType data_type, const void* base, size_t bytes, const int64_t* shape, uint64_t rank,
                      TRITONSERVER_MemoryType type, int64_t id, void* userp) {
  (void)trace, (void)type, (void)id;
  EXPECT(data_type == TRITONSERVER_TYPE_FP32 && bytes == sizeof four && memcmp(base, four, bytes) == 0 && rank == 1 && shape[0] == 4);
  EXPECT(strcmp(name, activity == TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT ? "OUTPUT0" : "INPUT0") == 0);
  struct Trail* trail = userp;
  trail->tensors++;
  trail->seen[trail->count++] = activity;
}

static void on_trace_release(TRITONSERVER_InferenceTrace* trace, void* userp) {
  struct Trail* trail = userp;
  trail->releases++;
  OK(TS(InferenceTraceDelete)(trace));
  sem_post(&trail->over);
}

static void traces(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  struct Trail trail = {0};
  sem_init(&trail.over, 0, 0);
  TRITONSERVER_InferenceTrace *trace, *child;
  OK(TS(InferenceTraceTensorNew)(&trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS, 9, on_activity, on_tensor,
                                 on_trace_release, &trail));
  uint64_t id, parent;
  OK(TS(InferenceTraceId)(trace, &id));
  OK(TS(InferenceTraceParentId)(trace, &parent));
  EXPECT(id > 0 && parent == 9);
  OK(TS(InferenceTraceSpawnChildTrace)(trace, &child));
  OK(TS(InferenceTraceParentId)(child, &parent));
  EXPECT(parent == id);
  OK(TS(InferenceTraceDelete)(child));
  OK(TS(InferenceTraceSpawnChildTrace)(NULL, &child));
  EXPECT(child == NULL);
  OK(TS(InferenceTraceReportActivity)(trace, 5, "mine"));
  const char* text;
  OK(TS(InferenceTraceContext)(trace, &text));
  EXPECT(strcmp(text, "{\"5\":\"mine\"}") == 0);
  OK(TS(InferenceTraceSetContext)(trace, "{}"));

  struct Wait wait;
  struct Notes notes = {0};
  TRITONSERVER_InferenceRequest* request = make_request(server, "identity", allocator, &notes, &wait);
  OK(TS(InferenceRequestSetId)(request, "traced"));
  // Refused before it starts: the trace stays ours.
  OK(TS(InferenceRequestAddRequestedOutput)(request, "NONE"));
  REFUSED(TS(ServerInferAsync)(server, request, trace), TRITONSERVER_ERROR_INVALID_ARG, "unexpected inference output 'NONE'");
  EXPECT(trail.releases == 0);
  OK(TS(InferenceRequestRemoveAllRequestedOutputs)(request));
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, trace);
  expect_four(response, &notes);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(request));
  sem_wait(&trail.over);
  static const TRITONSERVER_InferenceTraceActivity expected[] = {
      TRITONSERVER_TRACE_CUSTOM_ACTIVITY,       TRITONSERVER_TRACE_REQUEST_START,      TRITONSERVER_TRACE_QUEUE_START,
      TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT,    TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT, TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT,
      TRITONSERVER_TRACE_COMPUTE_START,         TRITONSERVER_TRACE_COMPUTE_INPUT_END,  TRITONSERVER_TRACE_COMPUTE_OUTPUT_START,
      TRITONSERVER_TRACE_COMPUTE_END,           TRITONSERVER_TRACE_REQUEST_END};
  int expected_count = (int)(sizeof expected / sizeof *expected);
  for (int place = 0; place < trail.count; place++)
    if (place >= expected_count || trail.seen[place] != expected[place])
      FAIL("activity %d is %s", place, TS(InferenceTraceActivityString)(trail.seen[place]));
  EXPECT(trail.count == expected_count && trail.tensors == 3 && trail.releases == 1);
}

// What the backend of caller.c found out.

static void backends_view(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  struct Wait wait;
  struct Notes notes = {0};
  struct Trail trail = {0};
  sem_init(&trail.over, 0, 0);
  TRITONSERVER_InferenceRequest* request = make_request(server, "caller", allocator, &notes, &wait);
  TRITONSERVER_BufferAttributes* attributes;
  OK(TS(InferenceRequestRemoveAllInputData)(request, "INPUT0"));
  OK(TS(BufferAttributesNew)(&attributes));
  OK(TS(BufferAttributesSetByteSize)(attributes, sizeof four));
  char handle[64] = "of another process";
  OK(TS(BufferAttributesSetCudaIpcHandle)(attributes, handle));
  memset(handle, 0, sizeof handle);
  OK(TS(InferenceRequestAppendInputDataWithBufferAttributes)(request, "INPUT0", four, attributes));
  OK(TS(BufferAttributesDelete)(attributes));
  static float special[] = {10, 20, 30, 40};
  OK(TS(InferenceRequestAppendInputDataWithHostPolicy)(request, "INPUT0", special, 4, TRITONSERVER_MEMORY_CPU, 0, "special"));
  OK(TS(InferenceRequestAppendInputDataWithHostPolicy)(request, "INPUT0", special + 1, 12, TRITONSERVER_MEMORY_CPU, 0, "special"));
  TRITONSERVER_InferenceTrace* trace;
  OK(TS(InferenceTraceNew)(&trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, on_any_activity, on_trace_release, &trail));
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, trace);
  expect_four(response, &notes);
  EXPECT(notes.queries == 1 && *(const int64_t*)parameter(response, "query_type") == TRITONSERVER_MEMORY_CPU_PINNED);
  EXPECT(*(const int64_t*)parameter(response, "query_id") == 5);
  EXPECT(*(const double*)parameter(response, "common_sum") == 10 && *(const double*)parameter(response, "special_sum") == 100);
  EXPECT(strcmp(parameter(response, "ipc"), "of another process") == 0);
  EXPECT(strcmp(parameter(response, "early"), "Server not ready") == 0);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(request));
  // The request's trace and that of what the backend asked for.
  sem_wait(&trail.over);
  sem_wait(&trail.over);
  EXPECT(trail.releases == 2);

  // An allocator that answers no queries, and no host policy's data.
  TRITONSERVER_ResponseAllocator* plain = NULL;
  OK(TS(ResponseAllocatorNew)(&plain, note_alloc, note_release, note_start));
  memset(&notes, 0, sizeof notes);
  request = make_request(server, "caller", plain, &notes, &wait);
  OK(TS(InferenceRequestRemoveAllInputData)(request, "INPUT0"));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four, sizeof four, TRITONSERVER_MEMORY_CPU, 0));
  response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  EXPECT(strcmp(parameter(response, "query_error"), "[request id: <id_unknown>] Output properties are not available") == 0);
  EXPECT(*(const double*)parameter(response, "special_sum") == 10 && strcmp(parameter(response, "ipc"), "") == 0);
  OK(TS(InferenceResponseDelete)(response));
  // What the allocator learns after the request was told of it holds for the request, too.
  EXPECT(notes.attributes == 0 && notes.queries == 0);
  OK(TS(ResponseAllocatorSetQueryFunction)(plain, note_query));
  OK(TS(ResponseAllocatorSetBufferAttributesFunction)(plain, note_attributes));
  response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  EXPECT(notes.queries == 1 && *(const int64_t*)parameter(response, "query_type") == TRITONSERVER_MEMORY_CPU_PINNED);
  EXPECT(notes.attributes == 1);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(ResponseAllocatorSetQueryFunction)(plain, NULL));
  OK(TS(ResponseAllocatorSetBufferAttributesFunction)(plain, NULL));
  response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  EXPECT(notes.queries == 1 && notes.attributes == 1);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(request));
  OK(TS(ResponseAllocatorDelete)(plain));
}

// A timeout that rejects is kept although the only instance is busy for longer.
static void timeouts(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  struct Wait slow_wait, wait;
  struct Notes slow_notes = {0}, notes = {0};
  TRITONSERVER_InferenceRequest* slow = make_request(server, "hurried", allocator, &slow_notes, &slow_wait);
  OK(TS(InferenceRequestSetIntParameter)(slow, "delay_us", 300000));
  TRITONSERVER_InferenceRequest* request = make_request(server, "hurried", allocator, &notes, &wait);
  OK(TS(ServerInferAsync)(server, slow, NULL));
  usleep(20000);
  OK(TS(ServerInferAsync)(server, request, NULL));
  sem_wait(&wait.answered);
  sem_wait(&wait.released);
  EXPECT(sem_trywait(&slow_wait.answered) != 0);
  REFUSED(TS(InferenceResponseError)(wait.response), TRITONSERVER_ERROR_UNAVAILABLE, "Request timeout expired");
  OK(TS(InferenceResponseDelete)(wait.response));
  OK(TS(InferenceRequestDelete)(request));
  sem_wait(&slow_wait.answered);
  sem_wait(&slow_wait.released);
  OK(TS(InferenceResponseDelete)(slow_wait.response));
  OK(TS(InferenceRequestDelete)(slow));
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  TRITONSERVER_Server* server = api_start("first", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  traces(server, allocator);
  backends_view(server, allocator);
  timeouts(server, allocator);
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  puts("ok");
  return 0;
}
