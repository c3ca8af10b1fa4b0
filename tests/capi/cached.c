// Embeds the server with a response cache: the same request, object and all, several times, with the cache's directory from outside.
//
//   cached LIBRARY REPOSITORY BACKENDS CACHES OUTPUT_BYTES
//
// The repository has a model `cached` (FP32 [-1]). The answers of hits must lie in buffers of the allocator, of which each comes back.

#include <semaphore.h>

#include "api.h"

enum { ROUNDS = 5 };

static sem_t released, answered;
static int allocated, freed;
static const void* wanted;
static size_t wanted_bytes;

static TRITONSERVER_Error* allocate(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                                    int64_t id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type,
                                    int64_t* actual_id) {
  (void)self, (void)type, (void)id, (void)userp;
  EXPECT(strcmp(name, "OUTPUT0") == 0);
  *buffer = *buffer_userp = malloc(bytes);
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  allocated++;
  return NULL;
}

static TRITONSERVER_Error* release_buffer(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                          TRITONSERVER_MemoryType type, int64_t id) {
  (void)self, (void)bytes, (void)type, (void)id;
  EXPECT(buffer == buffer_userp);
  // The cache must not have kept it.
  memset(buffer, 0xee, bytes);
  free(buffer);
  freed++;
  return NULL;
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)request, (void)userp;
  EXPECT(flags == TRITONSERVER_REQUEST_RELEASE_ALL);
  sem_post(&released);
}

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  (void)userp;
  EXPECT(response != NULL && flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  OK(TS(InferenceResponseError)(response));
  const char *id, *model;
  int64_t version;
  struct Output output = output_of(response, 0);
  EXPECT(output.rank == 1 && output.bytes == wanted_bytes && output.userp == output.base && memcmp(output.base, wanted, wanted_bytes) == 0);
  OK(TS(InferenceResponseId)(response, &id));
  OK(TS(InferenceResponseModel)(response, &model, &version));
  EXPECT(strcmp(id, "mine") == 0 && strcmp(model, "cached") == 0 && version == 1);
  OK(TS(InferenceResponseDelete)(response));
  sem_post(&answered);
}

// The count of `name` in the statistics, which have no other object of that name.
static int counted(TRITONSERVER_Server* server, const char* name) {
  TRITONSERVER_Message* message = NULL;
  OK(TS(ServerModelStatistics)(server, "cached", 1, &message));
  const char* base;
  size_t bytes;
  OK(TS(MessageSerializeToJson)(message, &base, &bytes));
  char* text = strndup(base, bytes);
  char key[64];
  snprintf(key, sizeof key, "\"%s\":{\"count\":", name);
  char* place = strstr(text, key);
  EXPECT(place != NULL);
  int count = atoi(place + strlen(key));
  free(text);
  OK(TS(MessageDelete)(message));
  return count;
}

int main(int count, char** words) {
  EXPECT(count == 6);
  api_open(words[1]);
  wanted_bytes = (size_t)atol(words[5]);
  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, words[2]));
  OK(TS(ServerOptionsSetBackendDirectory)(options, words[3]));
  OK(TS(ServerOptionsSetCacheDirectory)(options, words[4]));
  OK(TS(ServerOptionsSetLogInfo)(options, false));
  // Two caches are one too many.
  TRITONSERVER_Server* server = NULL;
  OK(TS(ServerOptionsSetCacheConfig)(options, "local", "{\"size\": \"16777216\"}"));
  OK(TS(ServerOptionsSetCacheConfig)(options, "redis", "{}"));
  REFUSED(TS(ServerNew)(&server, options), TRITONSERVER_ERROR_INVALID_ARG, "found multiple cache configurations");
  OK(TS(ServerOptionsDelete)(options));

  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, words[2]));
  OK(TS(ServerOptionsSetBackendDirectory)(options, words[3]));
  OK(TS(ServerOptionsSetCacheDirectory)(options, words[4]));
  OK(TS(ServerOptionsSetResponseCacheByteSize)(options, 16777216));
  OK(TS(ServerOptionsSetLogInfo)(options, false));
  OK(TS(ServerNew)(&server, options));
  OK(TS(ServerOptionsDelete)(options));

  TRITONSERVER_ResponseAllocator* allocator = NULL;
  OK(TS(ResponseAllocatorNew)(&allocator, allocate, release_buffer, NULL));
  sem_init(&released, 0, 0);
  sem_init(&answered, 0, 0);
  float* input = malloc(wanted_bytes);
  for (size_t place = 0; place < wanted_bytes / sizeof *input; place++) input[place] = (float)place;
  wanted = input;
  const int64_t shape[] = {(int64_t)(wanted_bytes / sizeof *input)};
  TRITONSERVER_InferenceRequest* request = NULL;
  OK(TS(InferenceRequestNew)(&request, server, "cached", -1));
  OK(TS(InferenceRequestSetId)(request, "mine"));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", input, wanted_bytes, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, NULL));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, NULL, on_response, NULL));
  for (int round = 0; round < ROUNDS; round++) {
    OK(TS(ServerInferAsync)(server, request, NULL));
    sem_wait(&answered);
    sem_wait(&released);
  }
  EXPECT(counted(server, "cache_hit") == ROUNDS - 1);
  EXPECT(counted(server, "cache_miss") == 1);
  EXPECT(counted(server, "success") == ROUNDS);
  EXPECT(counted(server, "compute_infer") == 1);
  EXPECT(allocated == ROUNDS);

  OK(TS(InferenceRequestDelete)(request));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  EXPECT(freed == ROUNDS);
  free(input);
  puts("ok");
  return 0;
}
