// What the in-process half of the C API promises, one part after another: arguments that are refused, options, documents, requests,
// allocators, traces, and several servers in one process.
//
//   contract LIBRARY REPOSITORY BACKENDS OTHER_REPOSITORY
//
// REPOSITORY has `identity` (FP32 [-1], delays by parameter, OUTPUT0 with labels), `caller` (of caller.c), and `hurried` (an identity model
// whose queue rejects after 50 ms); OTHER_REPOSITORY has `other`.

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "api.h"

static const char *repository, *backends, *other_repository;

static void expect_text(TRITONSERVER_Message* message, const char* expected) {
  const char* base;
  size_t bytes;
  OK(TS(MessageSerializeToJson)(message, &base, &bytes));
  if (strstr(base, expected) == NULL) FAIL("no %s in %s", expected, base);
  OK(TS(MessageDelete)(message));
}

// An allocator that notes how it is called.

struct Notes {
  int starts, allocs, attributes, queries, releases;
  size_t bytes;
  bool refuses;
};

static TRITONSERVER_Error* note_start(TRITONSERVER_ResponseAllocator* self, void* userp) {
  (void)self;
  ((struct Notes*)userp)->starts++;
  return NULL;
}

static TRITONSERVER_Error* note_alloc(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                                      int64_t id, void* userp, void** buffer, void** buffer_userp,
                                      TRITONSERVER_MemoryType* actual_type, int64_t* actual_id) {
  (void)self, (void)name, (void)type, (void)id;
  struct Notes* notes = userp;
  EXPECT(notes->starts == notes->allocs + 1);
  notes->allocs++;
  notes->bytes = bytes;
  if (notes->refuses) return TS(ErrorNew)(TRITONSERVER_ERROR_UNAVAILABLE, "no room here");
  *buffer = malloc(bytes + 1);
  *buffer_userp = notes;
  *actual_type = TRITONSERVER_MEMORY_CPU_PINNED;
  *actual_id = 3;
  return NULL;
}

static TRITONSERVER_Error* note_attributes(TRITONSERVER_ResponseAllocator* self, const char* name,
                                           TRITONSERVER_BufferAttributes* attributes, void* userp, void* buffer_userp) {
  (void)self, (void)name;
  EXPECT(userp == buffer_userp);
  ((struct Notes*)userp)->attributes++;
  return TS(BufferAttributesSetByteSize)(attributes, 1);
}

static TRITONSERVER_Error* note_query(TRITONSERVER_ResponseAllocator* self, void* userp, const char* name, size_t* bytes,
                                      TRITONSERVER_MemoryType* type, int64_t* id) {
  (void)self;
  EXPECT(strcmp(name, "OUTPUT0") == 0 && *bytes == 16);
  ((struct Notes*)userp)->queries++;
  *type = TRITONSERVER_MEMORY_CPU_PINNED;
  *id = 5;
  return NULL;
}

static TRITONSERVER_Error* note_release(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                        TRITONSERVER_MemoryType type, int64_t id) {
  (void)self;
  struct Notes* notes = buffer_userp;
  EXPECT(bytes == notes->bytes && type == TRITONSERVER_MEMORY_CPU_PINNED && id == 3);
  notes->releases++;
  free(buffer);
  return NULL;
}

// One inference, waited for.

struct Wait {
  sem_t answered, released;
  TRITONSERVER_InferenceResponse* response;
};

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  struct Wait* wait = userp;
  EXPECT(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  wait->response = response;
  sem_post(&wait->answered);
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  EXPECT(request != NULL && flags == TRITONSERVER_REQUEST_RELEASE_ALL);
  sem_post(&((struct Wait*)userp)->released);
}

static TRITONSERVER_ResponseAllocator* make_allocator(void) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  OK(TS(ResponseAllocatorNew)(&allocator, note_alloc, note_release, note_start));
  OK(TS(ResponseAllocatorSetBufferAttributesFunction)(allocator, note_attributes));
  OK(TS(ResponseAllocatorSetQueryFunction)(allocator, note_query));
  return allocator;
}

static float four[] = {1, 2, 3, 4};
static const int64_t four_shape[] = {4};

static TRITONSERVER_InferenceRequest* make_request(TRITONSERVER_Server* server, const char* model,
                                                   TRITONSERVER_ResponseAllocator* allocator, struct Notes* notes, struct Wait* wait) {
  TRITONSERVER_InferenceRequest* request = NULL;
  OK(TS(InferenceRequestNew)(&request, server, model, -1));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, four_shape, 1));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four, 8, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four + 2, 8, TRITONSERVER_MEMORY_CPU, 0));
  sem_init(&wait->answered, 0, 0);
  sem_init(&wait->released, 0, 0);
  OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, wait));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, notes, on_response, wait));
  return request;
}

static TRITONSERVER_InferenceResponse* run(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, struct Wait* wait,
                                           TRITONSERVER_InferenceTrace* trace) {
  OK(TS(ServerInferAsync)(server, request, trace));
  sem_wait(&wait->answered);
  sem_wait(&wait->released);
  return wait->response;
}

static void expect_four(TRITONSERVER_InferenceResponse* response, struct Notes* notes) {
  OK(TS(InferenceResponseError)(response));
  uint32_t count;
  OK(TS(InferenceResponseOutputCount)(response, &count));
  EXPECT(count == 1);
  const char* name;
  TRITONSERVER_DataType data_type;
  const int64_t* shape;
  uint64_t rank;
  const void* base;
  size_t bytes;
  TRITONSERVER_MemoryType type;
  int64_t id;
  void* userp;
  OK(TS(InferenceResponseOutput)(response, 0, &name, &data_type, &shape, &rank, &base, &bytes, &type, &id, &userp));
  EXPECT(strcmp(name, "OUTPUT0") == 0 && data_type == TRITONSERVER_TYPE_FP32 && rank == 1 && shape[0] == 4);
  EXPECT(bytes == sizeof four && memcmp(base, four, bytes) == 0 && type == TRITONSERVER_MEMORY_CPU_PINNED && id == 3);
  EXPECT(userp == notes);
}

static void refusals(void) {
  REFUSED(TS(ServerNew)(NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, "");
  TRITONSERVER_Server* server = NULL;
  REFUSED(TS(ServerNew)(&server, NULL), TRITONSERVER_ERROR_INVALID_ARG, "server options was nullptr");
  EXPECT(server == NULL);
  OK(TS(ServerDelete)(NULL));
  bool answer;
  REFUSED(TS(ServerIsLive)(NULL, &answer), TRITONSERVER_ERROR_INVALID_ARG, "server was nullptr");
  REFUSED(TS(InferenceRequestNew)(NULL, NULL, NULL, 1), TRITONSERVER_ERROR_INVALID_ARG, "server was nullptr");
  REFUSED(TS(InferenceRequestSetId)(NULL, "x"), TRITONSERVER_ERROR_INVALID_ARG, "request was nullptr");
  REFUSED(TS(ServerInferAsync)(NULL, NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, "server was nullptr");
  REFUSED(TS(InferenceResponseDelete)(NULL), TRITONSERVER_ERROR_INVALID_ARG, "response was nullptr");
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  REFUSED(TS(ResponseAllocatorNew)(&allocator, NULL, NULL, NULL), TRITONSERVER_ERROR_INVALID_ARG, "");

  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  REFUSED(TS(ServerOptionsSetModelControlMode)(options, 7), TRITONSERVER_ERROR_INVALID_ARG, "unknown control mode '7'");
  REFUSED(TS(ServerOptionsSetRateLimiterMode)(options, 7), TRITONSERVER_ERROR_INVALID_ARG, "unknown rate limit mode '7'");
  REFUSED(TS(ServerOptionsSetModelLoadDeviceLimit)(options, TRITONSERVER_INSTANCEGROUPKIND_GPU, -1, 0.5),
          TRITONSERVER_ERROR_INVALID_ARG, "expects device ID >= 0, got -1");
  REFUSED(TS(ServerOptionsSetModelLoadDeviceLimit)(options, TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, 1.5),
          TRITONSERVER_ERROR_INVALID_ARG, "expects limit fraction to be in range [0.0, 1.0], got 1.5");
  REFUSED(TS(ServerOptionsSetModelLoadDeviceLimit)(options, TRITONSERVER_INSTANCEGROUPKIND_CPU, 0, 0.5),
          TRITONSERVER_ERROR_INVALID_ARG, "given device kind is not supported, got: CPU");
  REFUSED(TS(ServerOptionsSetServerId)(options, NULL), TRITONSERVER_ERROR_INVALID_ARG, "server_id was nullptr");
  REFUSED(TS(ServerNew)(&server, options), TRITONSERVER_ERROR_INVALID_ARG, "");
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, "/no/such/repository"));
  REFUSED(TS(ServerNew)(&server, options), TRITONSERVER_ERROR_INTERNAL, "failed to load all models");
  OK(TS(ServerOptionsDelete)(options));
}

static void documents(TRITONSERVER_Server* server) {
  TRITONSERVER_Message* message;
  OK(TS(ServerMetadata)(server, &message));
  expect_text(message, "{\"name\":\"first\",\"version\":\"2.");
  OK(TS(ServerModelMetadata)(server, "identity", -1, &message));
  expect_text(message,
              "{\"name\":\"identity\",\"versions\":[\"1\"],\"platform\":\"identity\",\"inputs\":[{\"name\":\"INPUT0\",\"datatype\":\"FP32\","
              "\"shape\":[-1]}],\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[-1]}]}");
  OK(TS(ServerModelConfig)(server, "identity", 1, 1, &message));
  expect_text(message, "\"backend\":\"identity\"");
  OK(TS(ServerModelIndex)(server, 0, &message));
  expect_text(message, "{\"name\":\"identity\",\"version\":\"1\",\"state\":\"READY\"}");
  OK(TS(ServerModelStatistics)(server, "identity", -1, &message));
  expect_text(message, "{\"model_stats\":[{\"name\":\"identity\",\"version\":\"1\",\"last_inference\":");
  OK(TS(ServerModelStatistics)(server, "", -1, &message));
  expect_text(message, "\"inference_stats\":{\"success\":{\"count\":");
  REFUSED(TS(ServerModelStatistics)(server, "none", -1, &message), TRITONSERVER_ERROR_INVALID_ARG, "requested model 'none' is not available");
  REFUSED(TS(ServerModelStatistics)(server, "identity", 7, &message), TRITONSERVER_ERROR_INVALID_ARG,
          "requested model version is not available for model 'identity'");
  REFUSED(TS(ServerModelMetadata)(server, "none", -1, &message), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model: 'none' is not found");
  bool is_ready;
  OK(TS(ServerModelIsReady)(server, "identity", 1, &is_ready));
  EXPECT(is_ready);
  TRITONSERVER_Metrics* metrics;
  OK(TS(ServerMetrics)(server, &metrics));
  const char* base;
  size_t bytes;
  OK(TS(MetricsFormatted)(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &bytes));
  EXPECT(strstr(base, "nv_inference_request_success{model=\"identity\",version=\"1\"}") != NULL);
  OK(TS(MetricsDelete)(metrics));
  // Loading is for explicit mode.
  REFUSED(TS(ServerLoadModel)(server, "identity"), TRITONSERVER_ERROR_UNAVAILABLE, "explicit model load / unload is not allowed");
}

static void custom_metrics(TRITONSERVER_Server* server) {
  struct TRITONSERVER_MetricFamily* family;
  struct TRITONSERVER_Metric* metric;
  TRITONSERVER_Parameter* label = TS(ParameterNew)("who", TRITONSERVER_PARAMETER_STRING, "me");
  const TRITONSERVER_Parameter* labels[] = {label};
  OK(TS(MetricFamilyNew)(&family, TRITONSERVER_METRIC_KIND_COUNTER, "embedder_count", "What it counts."));
  OK(TS(MetricNew)(&metric, family, labels, 1));
  TS(ParameterDelete)(label);
  OK(TS(MetricIncrement)(metric, 2));
  REFUSED(TS(MetricFamilyDelete)(family), TRITONSERVER_ERROR_INTERNAL, "Must call MetricDelete on all dependent metrics");
  TRITONSERVER_Metrics* metrics;
  OK(TS(ServerMetrics)(server, &metrics));
  const char* base;
  size_t bytes;
  OK(TS(MetricsFormatted)(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &bytes));
  EXPECT(strstr(base, "embedder_count{who=\"me\"} 2") != NULL);
  OK(TS(MetricsDelete)(metrics));
  OK(TS(MetricDelete)(metric));
  OK(TS(MetricFamilyDelete)(family));
}

static void requests(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  TRITONSERVER_InferenceRequest* request = NULL;
  REFUSED(TS(InferenceRequestNew)(&request, server, "none", -1), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model");
  struct Wait wait;
  struct Notes notes = {0};
  request = make_request(server, "identity", allocator, &notes, &wait);
  const char* text;
  uint64_t number;
  uint32_t small;
  bool answer;
  REFUSED(TS(InferenceRequestCancel)(request), TRITONSERVER_ERROR_INTERNAL, "It is not possible to cancel an inference request before");
  REFUSED(TS(InferenceRequestIsCancelled)(request, &answer), TRITONSERVER_ERROR_INTERNAL,
          "It is not possible to query cancellation status before");
  OK(TS(InferenceRequestSetId)(request, "seven"));
  OK(TS(InferenceRequestId)(request, &text));
  EXPECT(strcmp(text, "seven") == 0);
  OK(TS(InferenceRequestSetFlags)(request, 3));
  OK(TS(InferenceRequestFlags)(request, &small));
  EXPECT(small == 3);
  OK(TS(InferenceRequestSetFlags)(request, 0));
  OK(TS(InferenceRequestSetCorrelationId)(request, 77));
  OK(TS(InferenceRequestCorrelationId)(request, &number));
  EXPECT(number == 77);
  REFUSED(TS(InferenceRequestCorrelationIdString)(request, &text), TRITONSERVER_ERROR_INVALID_ARG,
          "given request's correlation id is not a string");
  char long_id[130];
  memset(long_id, 'x', 129);
  long_id[129] = 0;
  REFUSED(TS(InferenceRequestSetCorrelationIdString)(request, long_id), TRITONSERVER_ERROR_UNSUPPORTED,
          "string correlation ID cannot be longer than 128 characters");
  OK(TS(InferenceRequestSetCorrelationIdString)(request, long_id + 1));
  REFUSED(TS(InferenceRequestCorrelationId)(request, &number), TRITONSERVER_ERROR_INVALID_ARG,
          "given request's correlation id is not an unsigned int");
  OK(TS(InferenceRequestSetPriorityUInt64)(request, 5000000000));
  OK(TS(InferenceRequestPriority)(request, &small));
  EXPECT(small == 0);  // the model has no levels
  OK(TS(InferenceRequestSetTimeoutMicroseconds)(request, 123));
  OK(TS(InferenceRequestTimeoutMicroseconds)(request, &number));
  EXPECT(number == 123);
  REFUSED(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, four_shape, 1), TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: seven] input 'INPUT0' already exists in request");
  REFUSED(TS(InferenceRequestAddRawInput)(request, "RAW"), TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: seven] raw input 'RAW' can't be added to request with other inputs");
  REFUSED(TS(InferenceRequestAppendInputData)(request, "NONE", four, 4, TRITONSERVER_MEMORY_CPU, 0), TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: seven] input 'NONE' does not exist in request");
  REFUSED(TS(InferenceRequestRemoveInput)(request, "NONE"), TRITONSERVER_ERROR_INVALID_ARG, "[request id: seven] input 'NONE' does not exist");
  OK(TS(InferenceRequestAddRequestedOutput)(request, "OUTPUT0"));
  REFUSED(TS(InferenceRequestAddRequestedOutput)(request, "OUTPUT0"), TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: seven] output 'OUTPUT0' already exists in request");
  OK(TS(InferenceRequestRemoveRequestedOutput)(request, "NONE"));
  OK(TS(InferenceRequestSetStringParameter)(request, "s", "t"));
  OK(TS(InferenceRequestSetIntParameter)(request, "i", 1));
  OK(TS(InferenceRequestSetBoolParameter)(request, "b", true));
  OK(TS(InferenceRequestSetDoubleParameter)(request, "d", 0.5));

  // Twice with the same object: right both times.
  for (int round = 1; round <= 2; round++) {
    TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
    expect_four(response, &notes);
    OK(TS(InferenceResponseId)(response, &text));
    EXPECT(strcmp(text, "seven") == 0);
    int64_t version;
    OK(TS(InferenceResponseModel)(response, &text, &version));
    EXPECT(strcmp(text, "identity") == 0 && version == 1);
    OK(TS(InferenceResponseOutputClassificationLabel)(response, 0, 1, &text));
    EXPECT(strcmp(text, "second") == 0);
    OK(TS(InferenceResponseOutputClassificationLabel)(response, 0, 9, &text));
    EXPECT(text == NULL);
    REFUSED(TS(InferenceResponseOutputClassificationLabel)(response, 1, 0, &text), TRITONSERVER_ERROR_INVALID_ARG,
            "out of bounds index 1: response has 1 outputs");
    OK(TS(InferenceResponseParameterCount)(response, &small));
    EXPECT(notes.releases == round - 1);
    OK(TS(InferenceResponseDelete)(response));
    EXPECT(notes.starts == round && notes.allocs == round && notes.attributes == round && notes.releases == round);
    OK(TS(InferenceRequestIsCancelled)(request, &answer));
    EXPECT(!answer);
  }
  // Data that does not agree: the request stays the caller's.
  OK(TS(InferenceRequestRemoveAllInputData)(request, "INPUT0"));
  REFUSED(TS(ServerInferAsync)(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: seven] input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 0");
  OK(TS(InferenceRequestRemoveAllInputs)(request));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_INVALID, four_shape, 1));
  REFUSED(TS(ServerInferAsync)(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG,
          "[request id: seven] inference input 'INPUT0' data-type is '<invalid>', but model 'identity' expects 'FP32'");
  // Raw: name, type and shape are the model's. Buffer attributes say how long it is.
  OK(TS(InferenceRequestRemoveInput)(request, "INPUT0"));
  OK(TS(InferenceRequestAddRawInput)(request, "anything"));
  TRITONSERVER_BufferAttributes* attributes;
  OK(TS(BufferAttributesNew)(&attributes));
  OK(TS(BufferAttributesSetByteSize)(attributes, sizeof four));
  OK(TS(InferenceRequestAppendInputDataWithBufferAttributes)(request, "anything", four, attributes));
  OK(TS(BufferAttributesDelete)(attributes));
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  OK(TS(InferenceResponseDelete)(response));
  // The allocator's error becomes the response's.
  notes.refuses = true;
  response = run(server, request, &wait, NULL);
  REFUSED(TS(InferenceResponseError)(response), TRITONSERVER_ERROR_UNAVAILABLE, "no room here");
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(request));
  EXPECT(notes.releases == 3);

  // Without its callbacks it goes nowhere.
  OK(TS(InferenceRequestNew)(&request, server, "identity", -1));
  REFUSED(TS(ServerInferAsync)(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG, "the request has no release callback");
  OK(TS(InferenceRequestDelete)(request));

  // Cancelled while it waits behind a slow one: answered at once, not by this thread.
  struct Wait slow_wait;
  struct Notes slow_notes = {0};
  memset(&notes, 0, sizeof notes);
  TRITONSERVER_InferenceRequest* slow = make_request(server, "identity", allocator, &slow_notes, &slow_wait);
  OK(TS(InferenceRequestSetIntParameter)(slow, "delay_us", 200000));
  request = make_request(server, "identity", allocator, &notes, &wait);
  OK(TS(ServerInferAsync)(server, slow, NULL));
  OK(TS(ServerInferAsync)(server, request, NULL));
  OK(TS(InferenceRequestCancel)(request));
  OK(TS(InferenceRequestIsCancelled)(request, &answer));
  EXPECT(answer);
  sem_wait(&wait.answered);
  sem_wait(&wait.released);
  EXPECT(sem_trywait(&slow_wait.answered) != 0);
  REFUSED(TS(InferenceResponseError)(wait.response), TRITONSERVER_ERROR_CANCELLED, "");
  EXPECT(notes.allocs == 0);
  OK(TS(InferenceResponseDelete)(wait.response));
  OK(TS(InferenceRequestDelete)(request));
  sem_wait(&slow_wait.answered);
  sem_wait(&slow_wait.released);
  expect_four(slow_wait.response, &slow_notes);
  OK(TS(InferenceResponseDelete)(slow_wait.response));
  OK(TS(InferenceRequestDelete)(slow));
}

// Traces.

struct Trail {
  int count, tensors, releases;
  TRITONSERVER_InferenceTraceActivity seen[32];
  uint64_t last_ns;
  sem_t over;
};

static void on_activity(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t ns, void* userp) {
  (void)trace;
  struct Trail* trail = userp;
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

static const void* parameter(TRITONSERVER_InferenceResponse* response, const char* wanted) {
  uint32_t count;
  OK(TS(InferenceResponseParameterCount)(response, &count));
  for (uint32_t index = 0; index < count; index++) {
    const char* name;
    TRITONSERVER_ParameterType type;
    const void* value;
    OK(TS(InferenceResponseParameter)(response, index, &name, &type, &value));
    if (strcmp(name, wanted) == 0) return value;
  }
  FAIL("no parameter %s", wanted);
}

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
  OK(TS(BufferAttributesSetCudaIpcHandle)(attributes, four));
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
  EXPECT(*(const bool*)parameter(response, "has_ipc"));
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
  EXPECT(*(const double*)parameter(response, "special_sum") == 10 && !*(const bool*)parameter(response, "has_ipc"));
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

static void several_servers(void) {
  // At once, each with its own models and name; then again one after another.
  for (int round = 0; round < 2; round++) {
    TRITONSERVER_Server* first = api_start("first", repository, backends, TRITONSERVER_MODEL_CONTROL_NONE);
    TRITONSERVER_Server* second = api_start("second", other_repository, backends, TRITONSERVER_MODEL_CONTROL_NONE);
    TRITONSERVER_Message* message;
    OK(TS(ServerMetadata)(second, &message));
    expect_text(message, "{\"name\":\"second\"");
    bool is_ready;
    REFUSED(TS(ServerModelIsReady)(first, "other", -1, &is_ready), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model");
    REFUSED(TS(ServerModelIsReady)(second, "identity", -1, &is_ready), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model");
    TRITONSERVER_ResponseAllocator* allocator = make_allocator();
    struct {
      TRITONSERVER_Server* server;
      const char* model;
    } runs[] = {{first, "identity"}, {second, "other"}};
    for (int index = 0; index < 2; index++) {
      struct Wait wait;
      struct Notes notes = {0};
      TRITONSERVER_InferenceRequest* request = make_request(runs[index].server, runs[index].model, allocator, &notes, &wait);
      TRITONSERVER_InferenceResponse* response = run(runs[index].server, request, &wait, NULL);
      expect_four(response, &notes);
      OK(TS(InferenceResponseDelete)(response));
      OK(TS(InferenceRequestDelete)(request));
      // The second serves on when the first is gone.
      if (index == 0) OK(TS(ServerDelete)(first));
    }
    OK(TS(ServerDelete)(second));
    OK(TS(ResponseAllocatorDelete)(allocator));
  }
}

static void explicit_control(void) {
  TRITONSERVER_Server* server = api_start("first", repository, backends, TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  TRITONSERVER_InferenceRequest* request = NULL;
  REFUSED(TS(InferenceRequestNew)(&request, server, "identity", -1), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model");
  OK(TS(ServerLoadModel)(server, "identity"));
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  struct Wait wait;
  struct Notes notes = {0};
  request = make_request(server, "identity", allocator, &notes, &wait);
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  OK(TS(InferenceResponseDelete)(response));
  // A request outlives its model: it goes to what has taken the place, or is refused.
  OK(TS(ServerLoadModel)(server, "identity"));
  memset(&notes, 0, sizeof notes);
  response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(ServerUnloadModel)(server, "identity"));
  REFUSED(TS(ServerInferAsync)(server, request, NULL), TRITONSERVER_ERROR_UNAVAILABLE,
          "Request for unknown model: 'identity' version 1 is not at ready state");
  memset(&notes, 0, sizeof notes);
  OK(TS(InferenceRequestDelete)(request));
  const char* config =
      "{\"name\":\"made\",\"backend\":\"identity\",\"input\":[{\"name\":\"INPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}],"
      "\"output\":[{\"name\":\"OUTPUT0\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}]}";
  const TRITONSERVER_Parameter* parameters[] = {TS(ParameterNew)("config", TRITONSERVER_PARAMETER_STRING, config),
                                                TS(ParameterBytesNew)("file:1/weights", "abc", 3)};
  OK(TS(ServerLoadModelWithParameters)(server, "made", parameters, 2));
  TS(ParameterDelete)((TRITONSERVER_Parameter*)parameters[0]);
  TS(ParameterDelete)((TRITONSERVER_Parameter*)parameters[1]);
  request = make_request(server, "made", allocator, &notes, &wait);
  response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(request));
  OK(TS(ServerRegisterModelRepository)(server, other_repository, NULL, 0));
  OK(TS(ServerLoadModel)(server, "other"));
  OK(TS(ServerUnregisterModelRepository)(server, other_repository));
  OK(TS(ServerSetExitTimeout)(server, 10));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
}

int main(int count, char** words) {
  EXPECT(count == 5);
  api_open(words[1]);
  repository = words[2], backends = words[3], other_repository = words[4];
  refusals();
  TRITONSERVER_Server* server = api_start("first", repository, backends, TRITONSERVER_MODEL_CONTROL_NONE);
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  requests(server, allocator);
  documents(server);
  custom_metrics(server);
  traces(server, allocator);
  backends_view(server, allocator);
  timeouts(server, allocator);
  OK(TS(ServerStop)(server));
  bool answer;
  REFUSED(TS(ServerIsLive)(server, &answer), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  REFUSED(TS(ServerIsReady)(server, &answer), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  several_servers();
  explicit_control();
  puts("ok");
  return 0;
}
