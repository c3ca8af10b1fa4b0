// What the in-process half of the C API promises of arguments, documents and requests.
//
//   contract LIBRARY REPOSITORY BACKENDS
//
// REPOSITORY has `identity` (FP32 [-1], delays by parameter, OUTPUT0 with labels).

#include <unistd.h>

#include "inference.h"

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
  OK(TS(InferenceResponseDelete)(NULL));
  uint32_t count;
  REFUSED(TS(InferenceResponseOutputCount)(NULL, &count), TRITONSERVER_ERROR_INVALID_ARG, "response was nullptr");
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
  REFUSED(TS(ServerNew)(&server, options), TRITONSERVER_ERROR_INTERNAL, "failed to stat file /no/such/repository");
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
  REFUSED(TS(ServerModelConfig)(server, "identity", 1, 2, &message), TRITONSERVER_ERROR_INVALID_ARG,
          "model configuration version 2 not supported, supported versions are: 1");
  REFUSED(TS(ServerModelConfig)(server, "none", -1, 2, &message), TRITONSERVER_ERROR_NOT_FOUND, "Request for unknown model: 'none' is not found");
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

static void expect_metric(TRITONSERVER_Server* server, const char* expected) {
  TRITONSERVER_Metrics* metrics;
  const char* base;
  size_t bytes;
  OK(TS(ServerMetrics)(server, &metrics));
  OK(TS(MetricsFormatted)(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &bytes));
  if (strstr(base, expected) == NULL) FAIL("no %s in %s", expected, base);
  OK(TS(MetricsDelete)(metrics));
}

// What each kind can do, and what it cannot.
static void kinds_of_metrics(TRITONSERVER_Server* server) {
  struct TRITONSERVER_MetricFamily *counters, *again, *gauges, *histograms;
  struct TRITONSERVER_Metric *counter, *twin, *gauge, *histogram;
  TRITONSERVER_MetricKind kind;
  double value;
  REFUSED(TS(MetricFamilyNew)(&counters, 9, "kinds", ""), TRITONSERVER_ERROR_INVALID_ARG, "Unsupported kind passed to MetricFamily constructor.");
  OK(TS(MetricFamilyNew)(&counters, TRITONSERVER_METRIC_KIND_COUNTER, "kinds_counter", ""));
  OK(TS(MetricFamilyNew)(&again, TRITONSERVER_METRIC_KIND_COUNTER, "kinds_counter", ""));
  OK(TS(MetricFamilyNew)(&gauges, TRITONSERVER_METRIC_KIND_GAUGE, "kinds_gauge", ""));
  OK(TS(MetricFamilyNew)(&histograms, TRITONSERVER_METRIC_KIND_HISTOGRAM, "kinds_histogram", ""));
  OK(TS(GetMetricFamilyKind)(histograms, &kind));
  EXPECT(kind == TRITONSERVER_METRIC_KIND_HISTOGRAM);
  TRITONSERVER_Parameter* number = TS(ParameterNew)("n", TRITONSERVER_PARAMETER_INT, &(int64_t){1});
  REFUSED(TS(MetricNew)(&counter, counters, (const TRITONSERVER_Parameter*[]){number}, 1), TRITONSERVER_ERROR_INVALID_ARG,
          "Parameter [n] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label.");
  TS(ParameterDelete)(number);
  TRITONSERVER_Parameter* label = TS(ParameterNew)("l", TRITONSERVER_PARAMETER_STRING, "x");
  const TRITONSERVER_Parameter* labels[] = {label};
  OK(TS(MetricNew)(&counter, counters, labels, 1));
  OK(TS(MetricNew)(&twin, again, labels, 1));
  OK(TS(MetricNew)(&gauge, gauges, labels, 1));
  REFUSED(TS(MetricNew)(&histogram, histograms, labels, 1), TRITONSERVER_ERROR_INVALID_ARG, "");
  struct TRITONSERVER_MetricArgs* arguments;
  OK(TS(MetricArgsNew)(&arguments));
  OK(TS(MetricArgsSetHistogram)(arguments, (double[]){0.5, 0.5}, 2));
  REFUSED(TS(MetricNewWithArgs)(&histogram, histograms, labels, 1, arguments), TRITONSERVER_ERROR_INVALID_ARG, "");
  OK(TS(MetricArgsSetHistogram)(arguments, (double[]){0.5, 2}, 2));
  OK(TS(MetricNewWithArgs)(&histogram, histograms, labels, 1, arguments));
  OK(TS(MetricArgsDelete)(arguments));
  TS(ParameterDelete)(label);

  OK(TS(MetricIncrement)(counter, 1.5));
  OK(TS(MetricIncrement)(twin, 1));
  OK(TS(MetricValue)(counter, &value));
  EXPECT(value == 2.5);
  REFUSED(TS(MetricIncrement)(counter, -1), TRITONSERVER_ERROR_INVALID_ARG, "");
  REFUSED(TS(MetricSet)(counter, 1), TRITONSERVER_ERROR_UNSUPPORTED, "");
  REFUSED(TS(MetricObserve)(counter, 1), TRITONSERVER_ERROR_UNSUPPORTED, "");
  OK(TS(MetricSet)(gauge, -4));
  OK(TS(MetricIncrement)(gauge, 1));
  OK(TS(MetricIncrement)(gauge, -2));
  OK(TS(MetricValue)(gauge, &value));
  EXPECT(value == -5);
  REFUSED(TS(MetricObserve)(gauge, 1), TRITONSERVER_ERROR_UNSUPPORTED, "");
  const double observed[] = {0.25, 0.5, 1, 9};
  for (int place = 0; place < 4; place++) OK(TS(MetricObserve)(histogram, observed[place]));
  REFUSED(TS(MetricValue)(histogram, &value), TRITONSERVER_ERROR_UNSUPPORTED, "");
  REFUSED(TS(MetricIncrement)(histogram, 1), TRITONSERVER_ERROR_UNSUPPORTED, "");
  REFUSED(TS(MetricSet)(histogram, 1), TRITONSERVER_ERROR_UNSUPPORTED, "");
  OK(TS(GetMetricKind)(histogram, &kind));
  EXPECT(kind == TRITONSERVER_METRIC_KIND_HISTOGRAM);
  expect_metric(server, "\nkinds_counter{l=\"x\"} 2.5\n");
  expect_metric(server, "\nkinds_gauge{l=\"x\"} -5\n");
  expect_metric(server, "\nkinds_histogram_count{l=\"x\"} 4\nkinds_histogram_sum{l=\"x\"} 10.75\nkinds_histogram_bucket{l=\"x\",le=\"0.5\"} 2\n"
                        "kinds_histogram_bucket{l=\"x\",le=\"2\"} 3\nkinds_histogram_bucket{l=\"x\",le=\"+Inf\"} 4\n");
  OK(TS(MetricDelete)(twin));
  OK(TS(MetricFamilyDelete)(again));
  // The other handles of what is shared go on.
  OK(TS(MetricIncrement)(counter, 1));
  expect_metric(server, "\nkinds_counter{l=\"x\"} 3.5\n");
  OK(TS(MetricDelete)(counter));
  OK(TS(MetricDelete)(gauge));
  OK(TS(MetricDelete)(histogram));
  OK(TS(MetricFamilyDelete)(counters));
  OK(TS(MetricFamilyDelete)(gauges));
  OK(TS(MetricFamilyDelete)(histograms));
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

  // Sent again while the server has it: refused, and the first time goes on.
  struct Wait slow_wait;
  struct Notes slow_notes = {0};
  memset(&notes, 0, sizeof notes);
  TRITONSERVER_InferenceRequest* slow = make_request(server, "identity", allocator, &slow_notes, &slow_wait);
  OK(TS(InferenceRequestSetIntParameter)(slow, "delay_us", 1000000));
  request = make_request(server, "identity", allocator, &notes, &wait);
  OK(TS(InferenceRequestSetId)(request, "behind"));
  OK(TS(ServerInferAsync)(server, slow, NULL));
  usleep(200000);
  OK(TS(ServerInferAsync)(server, request, NULL));
  REFUSED(TS(ServerInferAsync)(server, slow, NULL), TRITONSERVER_ERROR_INTERNAL,
          "[request id: <id_unknown>] Invalid request state transition from EXECUTING to INITIALIZED");
  REFUSED(TS(ServerInferAsync)(server, request, NULL), TRITONSERVER_ERROR_INTERNAL,
          "[request id: behind] Invalid request state transition from PENDING to INITIALIZED");
  sem_wait(&slow_wait.answered);
  sem_wait(&slow_wait.released);
  sem_wait(&wait.answered);
  sem_wait(&wait.released);
  expect_four(slow_wait.response, &slow_notes);
  expect_four(wait.response, &notes);
  OK(TS(InferenceResponseDelete)(slow_wait.response));
  OK(TS(InferenceResponseDelete)(wait.response));
  // Each was answered once.
  usleep(50000);
  EXPECT(sem_trywait(&wait.answered) != 0 && sem_trywait(&wait.released) != 0 && notes.allocs == 1 && slow_notes.allocs == 1);
  OK(TS(InferenceRequestDelete)(request));
  OK(TS(InferenceRequestDelete)(slow));

  // Cancelled while it waits behind a slow one: answered at once, not by this thread.
  memset(&slow_notes, 0, sizeof slow_notes);
  memset(&notes, 0, sizeof notes);
  slow = make_request(server, "identity", allocator, &slow_notes, &slow_wait);
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

// What is still said when the server has stopped, and what is not.
static void after_the_end(TRITONSERVER_Server* server) {
  TRITONSERVER_Message* message = NULL;
  TRITONSERVER_InferenceRequest* request = NULL;
  bool answer;
  OK(TS(ServerMetadata)(server, &message));
  expect_text(message, "{\"name\":\"first\"");
  REFUSED(TS(InferenceRequestNew)(&request, server, "identity", -1), TRITONSERVER_ERROR_NOT_FOUND,
          "Request for unknown model: 'identity' has no available versions");
  static const char text[] = "Server not ready";
  REFUSED(TS(ServerModelIsReady)(server, "identity", -1, &answer), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerModelIndex)(server, 0, &message), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerModelStatistics)(server, "identity", -1, &message), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerLoadModel)(server, "identity"), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerLoadModelWithParameters)(server, "identity", NULL, 0), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerUnloadModel)(server, "identity"), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerUnloadModelAndDependents)(server, "identity"), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerPollModelRepository)(server), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerRegisterModelRepository)(server, "/tmp", NULL, 0), TRITONSERVER_ERROR_UNAVAILABLE, text);
  REFUSED(TS(ServerUnregisterModelRepository)(server, "/tmp"), TRITONSERVER_ERROR_UNAVAILABLE, text);
  OK(TS(ServerStop)(server));
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  refusals();
  TRITONSERVER_Server* server = api_start("first", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  requests(server, allocator);
  documents(server);
  custom_metrics(server);
  kinds_of_metrics(server);
  OK(TS(ServerStop)(server));
  bool answer;
  REFUSED(TS(ServerIsLive)(server, &answer), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  REFUSED(TS(ServerIsReady)(server, &answer), TRITONSERVER_ERROR_UNAVAILABLE, "Server exiting");
  after_the_end(server);
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  puts("ok");
  return 0;
}
