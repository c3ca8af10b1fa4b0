// What each option of a server changes, as far as contract.c, servers.c and cached.c do not show it.
//
//   options LIBRARY REPOSITORY BACKENDS OTHER_REPOSITORY AGENTS
//
// REPOSITORY has `caller` (of caller.c; its configuration `second` has another output), `identity`, `slow` (three seconds per request),
// `bounded` (one live request, which takes a second), `flaky` (of caller.c: loads at every second attempt), `broken` (does not load) and
// `guarded` (by the checksum agent). OTHER_REPOSITORY has another `identity` and `added`. AGENTS has the checksum agent.

#include <time.h>
#include <unistd.h>

#include "inference.h"

static const char *repository, *backends, *other_repository, *agents;

static TRITONSERVER_ServerOptions* make_options(TRITONSERVER_ModelControlMode mode) {
  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, repository));
  OK(TS(ServerOptionsSetBackendDirectory)(options, backends));
  OK(TS(ServerOptionsSetModelControlMode)(options, mode));
  OK(TS(ServerOptionsSetLogInfo)(options, false));
  return options;
}

static TRITONSERVER_Server* start(TRITONSERVER_ServerOptions* options) {
  TRITONSERVER_Server* server = NULL;
  OK(TS(ServerNew)(&server, options));
  // It keeps nothing of them.
  OK(TS(ServerOptionsDelete)(options));
  return server;
}

static bool is_ready(TRITONSERVER_Server* server) {
  bool answer;
  OK(TS(ServerIsReady)(server, &answer));
  return answer;
}

static void expect_index(TRITONSERVER_Server* server, const char* expected) {
  TRITONSERVER_Message* message;
  OK(TS(ServerModelIndex)(server, TRITONSERVER_INDEX_FLAG_READY, &message));
  expect_text(message, expected);
}

// What the backend of caller.c is told, by way of the parameters of a response.
static TRITONSERVER_InferenceResponse* ask_caller(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator) {
  struct Wait wait;
  struct Notes notes = {0};
  TRITONSERVER_InferenceRequest* request = make_request(server, "caller", allocator, &notes, &wait);
  OK(TS(InferenceRequestRemoveAllInputData)(request, "INPUT0"));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four, sizeof four, TRITONSERVER_MEMORY_CPU, 0));
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
  OK(TS(InferenceResponseError)(response));
  OK(TS(InferenceRequestDelete)(request));
  return response;
}

static void expect_setting(const char* settings, const char* expected) {
  if (strstr(settings, expected) == NULL) FAIL("no %s in %s", expected, settings);
}

static void of_backends(void) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  OK(TS(ResponseAllocatorNew)(&allocator, note_alloc, note_release, note_start));
  for (int is_strict = 0; is_strict < 2; is_strict++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    OK(TS(ServerOptionsSetStartupModel)(options, "caller"));
    OK(TS(ServerOptionsSetStartupModel)(options, "identity"));
    OK(TS(ServerOptionsSetStrictModelConfig)(options, is_strict));
    OK(TS(ServerOptionsSetMinSupportedComputeCapability)(options, 7.5));
    OK(TS(ServerOptionsSetModelLoadDeviceLimit)(options, TRITONSERVER_INSTANCEGROUPKIND_GPU, 3, 0.25));
    OK(TS(ServerOptionsSetBackendConfig)(options, "caller", "one", "1"));
    OK(TS(ServerOptionsSetBackendConfig)(options, "caller", "two", "2"));
    OK(TS(ServerOptionsSetBackendConfig)(options, "identity", "three", "3"));
    TRITONSERVER_Server* server = start(options);
    TRITONSERVER_InferenceResponse* response = ask_caller(server, allocator);
    const char* settings = parameter(response, "settings");
    expect_setting(settings, "\"one\":\"1\"");
    expect_setting(settings, "\"two\":\"2\"");
    EXPECT(strstr(settings, "three") == NULL);
    expect_setting(settings, "\"min-compute-capability\":\"7.500000\"");
    expect_setting(settings, "\"model-load-gpu-limit-device-3\":\"0.250000\"");
    expect_setting(settings, backends);
    expect_setting(settings, is_strict ? "\"auto-complete-config\":\"false\"" : "\"auto-complete-config\":\"true\"");
    EXPECT(*(const bool*)parameter(response, "completes") == !is_strict);
    OK(TS(InferenceResponseDelete)(response));
    OK(TS(ServerDelete)(server));
  }
  OK(TS(ResponseAllocatorDelete)(allocator));
}

static void of_repositories(void) {
  // Each path adds one. Models of one name are told apart by their repositories, or stand in each other's way.
  for (int has_namespaces = 0; has_namespaces < 2; has_namespaces++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    OK(TS(ServerOptionsSetModelRepositoryPath)(options, other_repository));
    OK(TS(ServerOptionsSetModelNamespacing)(options, has_namespaces));
    OK(TS(ServerOptionsSetStartupModel)(options, "slow"));
    TRITONSERVER_Server* server = start(options);
    OK(TS(ServerLoadModel)(server, "added"));
    expect_index(server, "added\",\"version\":\"1\",\"state\":\"READY\"}");
    expect_index(server, "slow\",\"version\":\"1\",\"state\":\"READY\"}");
    if (has_namespaces) {
      OK(TS(ServerLoadModel)(server, "identity"));
    } else {
      REFUSED(TS(ServerLoadModel)(server, "identity"), TRITONSERVER_ERROR_INTERNAL, "failed to load 'identity', failed to poll from model repository");
    }
    OK(TS(ServerDelete)(server));
  }
  // The name of a configuration, for models that have one of it.
  static const char* outputs[] = {"\"OUTPUT0\"", "\"SECOND\""};
  for (int is_named = 0; is_named < 2; is_named++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    if (is_named) OK(TS(ServerOptionsSetModelConfigName)(options, "second"));
    OK(TS(ServerOptionsSetStartupModel)(options, "caller"));
    OK(TS(ServerOptionsSetStartupModel)(options, "identity"));
    TRITONSERVER_Server* server = start(options);
    TRITONSERVER_Message* message;
    OK(TS(ServerModelMetadata)(server, "caller", 1, &message));
    expect_text(message, outputs[is_named]);
    OK(TS(ServerModelMetadata)(server, "identity", 1, &message));
    expect_text(message, outputs[0]);
    OK(TS(ServerDelete)(server));
  }
}

static void of_loads(void) {
  for (uint32_t retries = 0; retries < 2; retries++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    OK(TS(ServerOptionsSetModelLoadRetryCount)(options, retries));
    OK(TS(ServerOptionsSetModelLoadThreadCount)(options, 1));
    TRITONSERVER_Server* server = start(options);
    if (retries == 0) {
      REFUSED(TS(ServerLoadModel)(server, "flaky"), TRITONSERVER_ERROR_INVALID_ARG, "load failed for model 'flaky'");
      // The attempt that succeeds, so that the next server begins with one that fails.
    }
    OK(TS(ServerLoadModel)(server, "flaky"));
    OK(TS(ServerDelete)(server));
  }
  // Agents lie where it is said.
  for (int has_agents = 0; has_agents < 2; has_agents++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    // The default one may be there, where Triton is installed.
    OK(TS(ServerOptionsSetRepoAgentDirectory)(options, has_agents ? agents : "/nowhere"));
    TRITONSERVER_Server* server = start(options);
    if (has_agents) {
      OK(TS(ServerLoadModel)(server, "guarded"));
    } else {
      REFUSED(TS(ServerLoadModel)(server, "guarded"), TRITONSERVER_ERROR_INTERNAL, "failed to load 'guarded', failed to poll from model repository");
    }
    OK(TS(ServerDelete)(server));
  }
  // A server is ready if all its models are, unless it is told to be lenient.
  for (int is_strict = 0; is_strict < 2; is_strict++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    OK(TS(ServerOptionsSetExitOnError)(options, false));
    OK(TS(ServerOptionsSetStrictReadiness)(options, is_strict));
    OK(TS(ServerOptionsSetStartupModel)(options, "broken"));
    OK(TS(ServerOptionsSetStartupModel)(options, "identity"));
    TRITONSERVER_Server* server = start(options);
    expect_index(server, "[{\"name\":\"identity\",\"version\":\"1\",\"state\":\"READY\"}]");
    EXPECT(is_ready(server) == !is_strict);
    OK(TS(ServerDelete)(server));
  }
  // Polls are for the mode of that name.
  TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_POLL);
  OK(TS(ServerOptionsSetExitOnError)(options, false));
  TRITONSERVER_Server* server = start(options);
  OK(TS(ServerPollModelRepository)(server));
  REFUSED(TS(ServerLoadModel)(server, "identity"), TRITONSERVER_ERROR_UNAVAILABLE, "explicit model load / unload is not allowed");
  OK(TS(ServerDelete)(server));
}

static char* metrics_of(TRITONSERVER_Server* server) {
  TRITONSERVER_Metrics* metrics;
  const char* base;
  size_t bytes;
  OK(TS(ServerMetrics)(server, &metrics));
  OK(TS(MetricsFormatted)(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &bytes));
  char* text = strndup(base, bytes);
  OK(TS(MetricsDelete)(metrics));
  return text;
}

static void of_metrics(void) {
  for (int has_metrics = 0; has_metrics < 2; has_metrics++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    OK(TS(ServerOptionsSetStartupModel)(options, "identity"));
    OK(TS(ServerOptionsSetMetrics)(options, has_metrics));
    OK(TS(ServerOptionsSetMetricsInterval)(options, 20));
    TRITONSERVER_Server* server = start(options);
    usleep(100000);
    char* text = metrics_of(server);
    EXPECT((strstr(text, "nv_inference_count{model=\"identity\",version=\"1\"} 0") != NULL) == has_metrics);
    EXPECT((strstr(text, "\nnv_inference_request_duration_us{") != NULL) == has_metrics);
    // Measured within the interval.
    EXPECT((strstr(text, "\nnv_cpu_utilization ") != NULL) == has_metrics);
    free(text);
    OK(TS(ServerDelete)(server));
  }
}

// Settings of later versions than the first: what they ask for is started.
static void of_later(void) {
  TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  OK(TS(ServerOptionsSetMetricsConfig)(options, "", "summary_latencies", "false"));
  OK(TS(ServerOptionsSetMetricsConfig)(options, "", "summary_latencies", "true"));
  OK(TS(ServerOptionsSetMetricsConfig)(options, "", "histogram_latencies", "true"));
  OK(TS(ServerOptionsAddRateLimiterResource)(options, "R1", 4, 0));
  OK(TS(ServerOptionsSetRateLimiterMode)(options, TRITONSERVER_RATE_LIMIT_EXEC_COUNT));
  OK(TS(ServerDelete)(start(options)));
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// The end waits for what executes for so long, as set before the start or since.
static void of_the_end(void) {
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  for (int is_late = 0; is_late < 2; is_late++) {
    TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
    OK(TS(ServerOptionsSetStartupModel)(options, "slow"));
    OK(TS(ServerOptionsSetExitTimeout)(options, is_late ? 30 : 1));
    TRITONSERVER_Server* server = start(options);
    if (is_late) OK(TS(ServerSetExitTimeout)(server, 1));
    struct Wait wait;
    struct Notes notes = {0};
    TRITONSERVER_InferenceRequest* request = make_request(server, "slow", allocator, &notes, &wait);
    OK(TS(ServerInferAsync)(server, request, NULL));
    usleep(100000);
    double from = now();
    REFUSED(TS(ServerStop)(server), TRITONSERVER_ERROR_INTERNAL, "Exit timeout expired. Exiting immediately.");
    double waited = now() - from;
    EXPECT(waited > 0.9 && sem_trywait(&wait.answered) != 0);
    // Nothing was cut off.
    sem_wait(&wait.answered);
    sem_wait(&wait.released);
    expect_four(wait.response, &notes);
    OK(TS(InferenceResponseDelete)(wait.response));
    OK(TS(InferenceRequestDelete)(request));
    OK(TS(ServerDelete)(server));
  }
  OK(TS(ResponseAllocatorDelete)(allocator));
}

// What clients are told by status 429 has no code of its own here.
static void of_bounds(void) {
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  TRITONSERVER_ServerOptions* options = make_options(TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  OK(TS(ServerOptionsSetStartupModel)(options, "bounded"));
  TRITONSERVER_Server* server = start(options);
  struct Wait first_wait, second_wait;
  struct Notes notes = {0};
  TRITONSERVER_InferenceRequest* first = make_request(server, "bounded", allocator, &notes, &first_wait);
  TRITONSERVER_InferenceRequest* second = make_request(server, "bounded", allocator, &notes, &second_wait);
  OK(TS(ServerInferAsync)(server, first, NULL));
  TRITONSERVER_Error* refused = TS(ServerInferAsync)(server, second, NULL);
  EXPECT(refused != NULL && strcmp(TS(ErrorCodeString)(refused), "Unavailable") == 0);
  REFUSED(refused, TRITONSERVER_ERROR_UNAVAILABLE,
          "[request id: <id_unknown>] model 'bounded' has as many live requests as it may have (1), try again later");
  EXPECT(sem_trywait(&second_wait.released) != 0 && sem_trywait(&second_wait.answered) != 0);
  sem_wait(&first_wait.answered);
  sem_wait(&first_wait.released);
  expect_four(first_wait.response, &notes);
  OK(TS(InferenceResponseDelete)(first_wait.response));
  // The refused one is still its owner's, who sends it again. The place is free a moment after the callbacks.
  int attempts = 0;
  while ((refused = TS(ServerInferAsync)(server, second, NULL)) != NULL) {
    EXPECT(TS(ErrorCode)(refused) == TRITONSERVER_ERROR_UNAVAILABLE && ++attempts < 10000);
    TS(ErrorDelete)(refused);
    usleep(1000);
  }
  sem_wait(&second_wait.answered);
  sem_wait(&second_wait.released);
  TRITONSERVER_InferenceResponse* response = second_wait.response;
  expect_four(response, &notes);
  OK(TS(InferenceResponseDelete)(response));
  OK(TS(InferenceRequestDelete)(first));
  OK(TS(InferenceRequestDelete)(second));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
}

// Whether the file has a line with `expected`, or has none if that begins with `!`. A thread of the log's own writes what is there in a moment.
static void expect_line(const char* path, const char* expected) {
  bool is_unwanted = expected[0] == '!';
  char text[4096];
  for (int tries = 0; tries < 1000; ++tries) {
    FILE* file = fopen(path, "r");
    EXPECT(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    bool is_there = strstr(text, expected + is_unwanted) != NULL;
    if (is_there != is_unwanted) return;
    if (is_unwanted) break;
    usleep(10000);
  }
  FAIL("%s: %s", expected, text);
}

static void of_the_log(void) {
  char path[] = "/tmp/conch-log-XXXXXX";
  close(mkstemp(path));
  OK(TS(ServerOptionsSetLogFile)(NULL, path));
  OK(TS(ServerOptionsSetLogInfo)(NULL, true));
  EXPECT(TS(LogIsEnabled)(TRITONSERVER_LOG_INFO));
  OK(TS(LogMessage)(TRITONSERVER_LOG_INFO, "here.c", 5, "shown"));
  OK(TS(ServerOptionsSetLogInfo)(NULL, false));
  EXPECT(!TS(LogIsEnabled)(TRITONSERVER_LOG_INFO));
  OK(TS(ServerOptionsSetLogError)(NULL, false));
  EXPECT(!TS(LogIsEnabled)(TRITONSERVER_LOG_ERROR));
  OK(TS(LogMessage)(TRITONSERVER_LOG_ERROR, "here.c", 6, "hidden"));
  OK(TS(ServerOptionsSetLogError)(NULL, true));
  OK(TS(ServerOptionsSetLogFormat)(NULL, TRITONSERVER_LOG_ISO8601));
  OK(TS(LogMessage)(TRITONSERVER_LOG_ERROR, "here.c", 7, "dated"));
  OK(TS(ServerOptionsSetLogFormat)(NULL, TRITONSERVER_LOG_DEFAULT));
  OK(TS(ServerOptionsSetLogFile)(NULL, NULL));
  expect_line(path, "shown");
  expect_line(path, "!hidden");
  // 2026-01-31T12:34:56Z, and not I0131 12:34:56.123456.
  time_t seconds = time(NULL);
  char date[16];
  strftime(date, sizeof date, "%Y-%m-%dT", gmtime(&seconds));
  expect_line(path, date);
  unlink(path);
}

int main(int count, char** words) {
  EXPECT(count == 6);
  api_open(words[1]);
  repository = words[2], backends = words[3], other_repository = words[4], agents = words[5];
  of_backends();
  of_repositories();
  of_loads();
  of_metrics();
  of_later();
  of_bounds();
  of_the_end();
  of_the_log();
  puts("ok");
  return 0;
}
