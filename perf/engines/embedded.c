/* conch without a network: a program that embeds libtritonserver.so and asks one model after the other, a request at a time.
 *
 *   embedded REPOSITORY BACKENDS
 *
 * It reads lines "<model> <input> <type> <shape, commas> <file of the input's bytes> <times>" and answers each with "<wall ns> <CPU ns> <bytes of the
 * outputs, in hex>" of so many requests. CPU is that of all threads of the process: this one makes a request, and waits for its answer,
 * as any program does that embeds the server. */

#include <pthread.h>

#include "loop.h"
#include "triton/core/tritonserver.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct TRITONSERVER_InferenceResponse* answer;
static int open_count;

static void check(struct TRITONSERVER_Error* error) {
  if (error != NULL) fail(TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
}

static void close_one(struct TRITONSERVER_InferenceResponse* response) {
  pthread_mutex_lock(&lock);
  if (response != NULL) answer = response;
  if (--open_count == 0) pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
}

static void released(struct TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* argument) {
  (void)request, (void)flags, (void)argument;
  close_one(NULL);
}

static void answered(struct TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* argument) {
  (void)flags, (void)argument;
  close_one(response);
}

static struct TRITONSERVER_Error* allocate(
    struct TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* argument, void** buffer, void** buffer_argument, TRITONSERVER_MemoryType* got, int64_t* got_id) {
  (void)allocator, (void)name, (void)type, (void)id, (void)argument;
  *buffer = size > 0 ? malloc(size) : NULL;
  *buffer_argument = NULL;
  *got = TRITONSERVER_MEMORY_CPU;
  *got_id = 0;
  return NULL;
}

static struct TRITONSERVER_Error* release(
    struct TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* argument, size_t size, TRITONSERVER_MemoryType type, int64_t id) {
  (void)allocator, (void)argument, (void)size, (void)type, (void)id;
  free(buffer);
  return NULL;
}

/* One request; the response is the caller's. */
static struct TRITONSERVER_InferenceResponse* ask(struct TRITONSERVER_Server* server, struct TRITONSERVER_InferenceRequest* request) {
  answer = NULL;
  open_count = 2;
  check(TRITONSERVER_ServerInferAsync(server, request, NULL));
  pthread_mutex_lock(&lock);
  while (open_count > 0) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  check(TRITONSERVER_InferenceResponseError(answer));
  return answer;
}

static void print_outputs(struct TRITONSERVER_InferenceResponse* response) {
  uint32_t count;
  check(TRITONSERVER_InferenceResponseOutputCount(response, &count));
  for (uint32_t index = 0; index < count; index++) {
    const char* name;
    const int64_t* shape;
    const void* base;
    uint64_t dims;
    size_t size;
    int64_t id;
    void* argument;
    TRITONSERVER_DataType data_type;
    TRITONSERVER_MemoryType type;
    check(TRITONSERVER_InferenceResponseOutput(response, index, &name, &data_type, &shape, &dims, &base, &size, &type, &id, &argument));
    for (size_t byte = 0; byte < size; byte++) printf("%02x", ((const unsigned char*)base)[byte]);
  }
}

int main(int argc, char** argv) {
  struct TRITONSERVER_ServerOptions* options;
  struct TRITONSERVER_Server* server;
  struct TRITONSERVER_ResponseAllocator* allocator;
  char line[8192], model[256], input[256], type[32], dims[256], path[4096];
  long long times;
  if (argc != 3) fail(argv[0], "REPOSITORY BACKENDS");
  check(TRITONSERVER_ServerOptionsNew(&options));
  check(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[1]));
  check(TRITONSERVER_ServerOptionsSetBackendDirectory(options, argv[2]));
  check(TRITONSERVER_ServerOptionsSetLogInfo(options, 0));
  check(TRITONSERVER_ServerNew(&server, options));
  check(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    int64_t shape[8];
    uint64_t rank = 0;
    size_t size;
    char* rest;
    if (sscanf(line, "%255s %255s %31s %255s %4095s %lld", model, input, type, dims, path, &times) != 6) fail(line, "is no command");
    for (char* word = strtok_r(dims, ",", &rest); word != NULL && rank < 8; word = strtok_r(NULL, ",", &rest))
      shape[rank++] = atoll(word);
    char* bytes = content_of(path, &size);
    struct TRITONSERVER_InferenceResponse* last = NULL;
    long long wall = -now_ns(CLOCK_MONOTONIC), cpu = -now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (long long index = 0; index < times; index++) {
      struct TRITONSERVER_InferenceRequest* request;
      if (last != NULL) check(TRITONSERVER_InferenceResponseDelete(last));
      check(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
      check(TRITONSERVER_InferenceRequestAddInput(request, input, TRITONSERVER_StringToDataType(type), shape, rank));
      check(TRITONSERVER_InferenceRequestAppendInputData(request, input, bytes, size, TRITONSERVER_MEMORY_CPU, 0));
      check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, NULL));
      check(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, answered, NULL));
      last = ask(server, request);
      check(TRITONSERVER_InferenceRequestDelete(request));
    }
    cpu += now_ns(CLOCK_PROCESS_CPUTIME_ID);
    wall += now_ns(CLOCK_MONOTONIC);
    printf("%lld %lld ", wall, cpu);
    if (last != NULL) {
      print_outputs(last);
      check(TRITONSERVER_InferenceResponseDelete(last));
    }
    printf("\n");
    fflush(stdout);
    free(bytes);
  }
  check(TRITONSERVER_ServerDelete(server));
  return 0;
}
