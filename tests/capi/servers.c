// Several servers in one process, models loaded by hand, and options.
//
//   servers LIBRARY REPOSITORY BACKENDS OTHER_REPOSITORY THIRD_REPOSITORY
//
// REPOSITORY has `identity` (FP32 [-1]) and `caller` (of caller.c), OTHER_REPOSITORY `other` (as identity) and `caller`, and
// THIRD_REPOSITORY `other` and `broken`, which fails to load.

#define _GNU_SOURCE
#include <sched.h>
#include <unistd.h>

#include "inference.h"

static const char *repository, *backends, *other_repository, *third_repository;

static void several_servers(void) {
  // At once, each with its own models and name; then again one after another.
  for (int round = 0; round < 2; round++) {
    TRITONSERVER_Server* first = api_start("first", repository, backends, TRITONSERVER_MODEL_CONTROL_NONE);
    TRITONSERVER_Server* second = api_start("second", other_repository, backends, TRITONSERVER_MODEL_CONTROL_NONE);
    TRITONSERVER_Message* message;
    OK(TS(ServerMetadata)(second, &message));
    expect_text(message, "{\"name\":\"second\"");
    bool is_ready;
    OK(TS(ServerModelIsReady)(first, "other", -1, &is_ready));
    EXPECT(!is_ready);
    OK(TS(ServerModelIsReady)(second, "identity", -1, &is_ready));
    EXPECT(!is_ready);
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

// Instances of a policy run where it says, and their backend is told.
static void host_policies(void) {
  cpu_set_t cpus;
  sched_getaffinity(0, sizeof cpus, &cpus);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &cpus)) cpu++;
  char range[32], expected[64];
  snprintf(range, sizeof range, "%d-%d", cpu, cpu);
  snprintf(expected, sizeof expected, "{\"cpu\":{\"cpu-cores\":\"%s\"}}", range);
  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, repository));
  OK(TS(ServerOptionsSetBackendDirectory)(options, backends));
  OK(TS(ServerOptionsSetStrictModelConfig)(options, false));
  REFUSED(TS(ServerOptionsSetHostPolicy)(options, "cpu", "gpu", "1"), TRITONSERVER_ERROR_UNSUPPORTED,
          "Unsupported host policy setting 'gpu' is specified");
  OK(TS(ServerOptionsSetHostPolicy)(options, "cpu", "cpu-cores", "everywhere"));
  TRITONSERVER_Server* server = NULL;
  REFUSED(TS(ServerNew)(&server, options), TRITONSERVER_ERROR_INTERNAL, "failed to load all models");
  OK(TS(ServerOptionsSetHostPolicy)(options, "cpu", "cpu-cores", range));
  OK(TS(ServerNew)(&server, options));
  OK(TS(ServerOptionsDelete)(options));
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  struct Wait wait;
  struct Notes notes = {0};
  TRITONSERVER_InferenceRequest* request = make_request(server, "caller", allocator, &notes, &wait);
  OK(TS(InferenceRequestRemoveAllInputData)(request, "INPUT0"));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four, sizeof four, TRITONSERVER_MEMORY_CPU, 0));
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
  expect_four(response, &notes);
  EXPECT(strcmp(parameter(response, "policy"), expected) == 0);
  EXPECT(*(const int64_t*)parameter(response, "cpu_count") == 1);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(request));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
}

// Options of the log are the process's and work at once; the others when the server starts.
static void options_work(void) {
  EXPECT(!TS(LogIsEnabled)(TRITONSERVER_LOG_VERBOSE));
  OK(TS(ServerOptionsSetLogVerbose)(NULL, 2));
  EXPECT(TS(LogIsEnabled)(TRITONSERVER_LOG_VERBOSE));
  OK(TS(ServerOptionsSetLogVerbose)(NULL, 0));
  OK(TS(ServerOptionsSetLogWarn)(NULL, false));
  EXPECT(!TS(LogIsEnabled)(TRITONSERVER_LOG_WARN));
  OK(TS(ServerOptionsSetLogWarn)(NULL, true));
  char path[] = "/tmp/conch-log-XXXXXX";
  close(mkstemp(path));
  OK(TS(ServerOptionsSetLogFile)(NULL, path));
  OK(TS(LogMessage)(TRITONSERVER_LOG_ERROR, "here.c", 5, "to the file"));
  OK(TS(ServerOptionsSetLogFile)(NULL, NULL));
  // A thread of the log's own writes the lines.
  char line[256] = "";
  for (int tries = 0; tries < 1000 && line[0] == 0; ++tries) {
    FILE* file = fopen(path, "r");
    if (fgets(line, sizeof line, file) == NULL) usleep(10000);
    fclose(file);
  }
  EXPECT(strstr(line, "to the file") != NULL);
  unlink(path);
  REFUSED(TS(ServerOptionsSetLogFile)(NULL, "/no/such/place"), TRITONSERVER_ERROR_INTERNAL, "");
  REFUSED(TS(ServerOptionsSetLogFormat)(NULL, 9), TRITONSERVER_ERROR_INVALID_ARG, "");

  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, third_repository));
  OK(TS(ServerOptionsSetBackendDirectory)(options, backends));
  OK(TS(ServerOptionsSetModelControlMode)(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  OK(TS(ServerOptionsSetStartupModel)(options, "broken"));
  OK(TS(ServerOptionsSetStartupModel)(options, "other"));
  OK(TS(ServerOptionsSetStrictReadiness)(options, false));
  OK(TS(ServerOptionsSetCpuMetrics)(options, false));
  OK(TS(ServerOptionsSetGpuMetrics)(options, false));
  OK(TS(ServerOptionsSetMetricsInterval)(options, 100));
  OK(TS(ServerOptionsSetMetricsConfig)(options, "", "counter_latencies", "false"));
  REFUSED(TS(ServerOptionsSetMetricsConfig)(options, "", "counter_latencies", "maybe"), TRITONSERVER_ERROR_INVALID_ARG,
          "invalid value for bool option: maybe");
  OK(TS(ServerOptionsSetModelLoadThreadCount)(options, 1));
  OK(TS(ServerOptionsSetModelLoadRetryCount)(options, 1));
  OK(TS(ServerOptionsSetModelNamespacing)(options, false));
  OK(TS(ServerOptionsSetMinSupportedComputeCapability)(options, 7.5));
  OK(TS(ServerOptionsSetBackendConfig)(options, "identity", "setting", "value"));
  OK(TS(ServerOptionsSetPinnedMemoryPoolByteSize)(options, 1 << 20));
  OK(TS(ServerOptionsSetCudaMemoryPoolByteSize)(options, 0, 1 << 20));
  OK(TS(ServerOptionsSetCudaVirtualAddressSize)(options, 0, 1 << 20));
  OK(TS(ServerOptionsSetBufferManagerThreadCount)(options, 2));
  OK(TS(ServerOptionsSetEnablePeerAccess)(options, false));
  OK(TS(ServerOptionsSetRepoAgentDirectory)(options, backends));
  OK(TS(ServerOptionsSetCacheDirectory)(options, backends));
  OK(TS(ServerOptionsSetResponseCacheByteSize)(options, 0));
  TRITONSERVER_Server* server = NULL;
  REFUSED(TS(ServerNew)(&server, options), TRITONSERVER_ERROR_INTERNAL, "failed to load all models");
  EXPECT(server == NULL);
  OK(TS(ServerOptionsSetExitOnError)(options, false));
  OK(TS(ServerNew)(&server, options));
  OK(TS(ServerOptionsDelete)(options));
  TRITONSERVER_Message* message;
  OK(TS(ServerModelIndex)(server, 0, &message));
  expect_text(message, "{\"name\":\"broken\",\"version\":\"1\",\"state\":\"UNAVAILABLE\",\"reason\":");
  OK(TS(ServerModelIndex)(server, TRITONSERVER_INDEX_FLAG_READY, &message));
  expect_text(message, "[{\"name\":\"other\",\"version\":\"1\",\"state\":\"READY\"}]");
  bool is_ready;
  OK(TS(ServerIsReady)(server, &is_ready));
  EXPECT(is_ready);
  TRITONSERVER_Metrics* metrics;
  OK(TS(ServerMetrics)(server, &metrics));
  const char* base;
  size_t bytes;
  OK(TS(MetricsFormatted)(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &bytes));
  EXPECT(strstr(base, "nv_inference_count") != NULL && strstr(base, "nv_inference_request_duration_us") == NULL);
  EXPECT(strstr(base, "nv_cpu_utilization") == NULL);
  OK(TS(MetricsDelete)(metrics));
  OK(TS(ServerDelete)(server));
}

int main(int count, char** words) {
  EXPECT(count == 6);
  api_open(words[1]);
  repository = words[2], backends = words[3], other_repository = words[4], third_repository = words[5];
  several_servers();
  explicit_control();
  host_policies();
  options_work();
  puts("ok");
  return 0;
}
