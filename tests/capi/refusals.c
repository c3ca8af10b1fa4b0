// What functions refuse, with codes and words, as far as contract.c does not show it.
//
//   refusals LIBRARY REPOSITORY BACKENDS
//
// REPOSITORY has `identity`.

#include "inference.h"

#define INVALID TRITONSERVER_ERROR_INVALID_ARG

typedef const TRITONSERVER_Parameter* Parameters[1];

static void delete_all(Parameters parameters) {
  TS(ParameterDelete)((TRITONSERVER_Parameter*)parameters[0]);
}

static void of_loads(TRITONSERVER_Server* server, const char* path) {
  const int64_t number = 7;
  const bool flag = true;
  Parameters config = {TS(ParameterNew)("config", TRITONSERVER_PARAMETER_INT, &number)};
  Parameters file = {TS(ParameterNew)("file:1/x", TRITONSERVER_PARAMETER_STRING, "text")};
  Parameters other = {TS(ParameterNew)("other", TRITONSERVER_PARAMETER_BOOL, &flag)};
  Parameters alone = {TS(ParameterBytesNew)("file:1/x", "text", 4)};
  const char* told = "failed to load 'identity', failed to poll from model repository";
  REFUSED(TS(ServerLoadModelWithParameters)(server, "identity", config, 1), INVALID,
          "Config parameter 'config' must have string type for its value");
  REFUSED(TS(ServerLoadModelWithParameters)(server, "identity", file, 1), INVALID,
          "File parameter 'file:1/x' must have bytes type for its value");
  REFUSED(TS(ServerLoadModelWithParameters)(server, "identity", other, 1), INVALID,
          "Unrecognized load parameter 'other' with type 'BOOL'");
  REFUSED(TS(ServerLoadModelWithParameters)(server, "identity", alone, 1), TRITONSERVER_ERROR_INTERNAL, told);
  REFUSED(TS(ServerLoadModelWithParameters)(server, "identity", NULL, 1), INVALID,
          "load parameters are not provided while parameter count is non-zero");
  REFUSED(TS(ServerRegisterModelRepository)(server, path, NULL, 1), INVALID,
          "model mappings are not provided while mapping count is non-zero");
  REFUSED(TS(ServerRegisterModelRepository)(server, path, other, 1), INVALID,
          "Mapped model name must be a string, found another type for other");
  REFUSED(TS(ServerRegisterModelRepository)(server, path, NULL, 0), TRITONSERVER_ERROR_ALREADY_EXISTS, "model repository '");
  REFUSED(TS(ServerRegisterModelRepository)(server, "/nonexistent", NULL, 0), INVALID,
          "failed to register '/nonexistent', repository not found");
  REFUSED(TS(ServerUnregisterModelRepository)(server, "/nonexistent"), INVALID,
          "failed to unregister '/nonexistent', repository not found");
  REFUSED(TS(ServerPollModelRepository)(server), TRITONSERVER_ERROR_UNAVAILABLE, "polling is disabled");
  delete_all(config), delete_all(file), delete_all(other), delete_all(alone);
}

static void of_requests(TRITONSERVER_Server* server) {
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  struct Wait wait;
  struct Notes notes = {0};
  TRITONSERVER_InferenceRequest* request = make_request(server, "identity", allocator, &notes, &wait);
  REFUSED(TS(InferenceRequestAppendInputData)(request, "INPUT0", NULL, 4, TRITONSERVER_MEMORY_CPU, 0), INVALID, "base was nullptr");
  REFUSED(TS(InferenceRequestAppendInputData)(request, "INPUT0", four, 4, (TRITONSERVER_MemoryType)9, 0), INVALID, "unknown memory type 9");
  REFUSED(TS(InferenceRequestSetReleaseCallback)(request, NULL, NULL), INVALID, "request_release_fn was nullptr");
  REFUSED(TS(InferenceRequestSetResponseCallback)(request, allocator, NULL, NULL, NULL), INVALID, "response_fn was nullptr");
  OK(TS(InferenceRequestDelete)(request));
  REFUSED(TS(ResponseAllocatorNew)(&allocator, NULL, note_release, NULL), INVALID,
          "a response allocator needs functions to allocate and to release");
  OK(TS(ResponseAllocatorDelete)(allocator));
  TRITONSERVER_InferenceTrace* trace = NULL;
  REFUSED(TS(InferenceTraceNew)(&trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, NULL, NULL, NULL), INVALID, "release_fn was nullptr");
}

static void of_metrics(TRITONSERVER_Server* server) {
  struct TRITONSERVER_MetricFamily* family;
  struct TRITONSERVER_MetricArgs* arguments;
  struct TRITONSERVER_Metric* metric;
  const double bounds[] = {2, 1};
  OK(TS(MetricFamilyNew)(&family, TRITONSERVER_METRIC_KIND_HISTOGRAM, "refused_histogram", ""));
  REFUSED(TS(MetricNew)(&metric, family, NULL, 0), INVALID, "Bucket boundaries not found in Metric args.");
  OK(TS(MetricArgsNew)(&arguments));
  REFUSED(TS(MetricNewWithArgs)(&metric, family, NULL, 0, arguments), INVALID, "Metric args not set to histogram kind.");
  OK(TS(MetricArgsSetHistogram)(arguments, bounds, 2));
  REFUSED(TS(MetricNewWithArgs)(&metric, family, NULL, 0, arguments), INVALID, "Bucket boundaries must be strictly increasing.");
  OK(TS(MetricArgsDelete)(arguments));
  OK(TS(MetricFamilyDelete)(family));
  REFUSED(TS(MetricFamilyNew)(&family, TRITONSERVER_METRIC_KIND_GAUGE, "no name", ""), INVALID, "Invalid metric name");
  TRITONSERVER_Metrics* metrics;
  const char* base;
  size_t bytes;
  OK(TS(ServerMetrics)(server, &metrics));
  REFUSED(TS(MetricsFormatted)(metrics, (TRITONSERVER_MetricFormat)7, &base, &bytes), INVALID, "unknown metrics format '7'");
  OK(TS(MetricsDelete)(metrics));
}

static void of_the_log(void) {
  REFUSED(TS(LogMessage)((TRITONSERVER_LogLevel)9, "here.c", 5, "what"), INVALID, "unknown logging level '9'");
  REFUSED(TS(ServerOptionsSetLogFormat)(NULL, (TRITONSERVER_LogFormat)9), INVALID, "unknown log format '9'");
  REFUSED(TS(ServerOptionsSetLogFile)(NULL, "/nonexistent/log"), TRITONSERVER_ERROR_INTERNAL, "failed to open log file '/nonexistent/log': ");
  TRITONSERVER_Error* error = TS(ErrorNew)((TRITONSERVER_Error_Code)99, "of no kind");
  EXPECT(strcmp(TS(ErrorCodeString)(error), "<invalid code>") == 0);
  TS(ErrorDelete)(error);
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  TRITONSERVER_Server* server = api_start("refusals", words[2], words[3], TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  OK(TS(ServerLoadModel)(server, "identity"));
  of_loads(server, words[2]);
  of_requests(server);
  of_metrics(server);
  of_the_log();
  OK(TS(ServerDelete)(server));
  puts("ok");
  return 0;
}
