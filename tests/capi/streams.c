// Embeds the server and streams from the backends repeat and square: many responses to a request, from a thread of the backend's.
//
//   streams LIBRARY REPOSITORY BACKENDS
//
// The repository has the decoupled models `repeat` and `square`.

#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <unistd.h>

#include "api.h"

enum { VALUES_MAX = 100, STREAMS = 8 };

struct Stream {
  TRITONSERVER_InferenceRequest* request;
  int32_t values[VALUES_MAX];
  uint32_t delays[VALUES_MAX], wait;
  int64_t shape;
  // What came back.
  int32_t got[VALUES_MAX];
  int count, errors;
  bool is_released, was_released_first;
  pthread_t thread;
  sem_t responded, ended, released;
};

static const int64_t one[] = {1}, row[] = {1, 1};
static TRITONSERVER_ResponseAllocator* allocator;
static int buffers;

static TRITONSERVER_Error* allocate(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                                    int64_t id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type,
                                    int64_t* actual_id) {
  (void)self, (void)name, (void)type, (void)id, (void)userp;
  *buffer = malloc(bytes);
  *buffer_userp = NULL;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  __atomic_add_fetch(&buffers, 1, __ATOMIC_RELAXED);
  return NULL;
}

static TRITONSERVER_Error* release_buffer(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                          TRITONSERVER_MemoryType type, int64_t id) {
  (void)self, (void)buffer_userp, (void)bytes, (void)type, (void)id;
  free(buffer);
  __atomic_sub_fetch(&buffers, 1, __ATOMIC_RELAXED);
  return NULL;
}

// The number in output `name`, if the response has it.
static bool number_of(TRITONSERVER_InferenceResponse* response, const char* wanted, int32_t* number) {
  uint32_t count;
  OK(TS(InferenceResponseOutputCount)(response, &count));
  for (uint32_t index = 0; index < count; index++) {
    struct Output output = output_of(response, index);
    if (strcmp(output.name, wanted) != 0) continue;
    EXPECT(output.bytes == sizeof *number);
    memcpy(number, output.base, output.bytes);
    return true;
  }
  return false;
}

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  struct Stream* stream = userp;
  stream->thread = pthread_self();
  if (stream->count == 0) stream->was_released_first = __atomic_load_n(&stream->is_released, __ATOMIC_ACQUIRE);
  if (response != NULL) {
    TRITONSERVER_Error* error = TS(InferenceResponseError)(response);
    int32_t index;
    if (error != NULL) {
      EXPECT(TS(ErrorCode)(error) == TRITONSERVER_ERROR_CANCELLED);
      TS(ErrorDelete)(error);
      stream->errors++;
    } else {
      EXPECT(stream->count < VALUES_MAX && number_of(response, "OUT", &stream->got[stream->count]));
      if (number_of(response, "IDX", &index)) EXPECT(index == stream->count);
      stream->count++;
    }
    OK(TS(InferenceResponseDelete)(response));
  }
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
    sem_post(&stream->ended);
  } else {
    EXPECT(response != NULL);
    sem_post(&stream->responded);
  }
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  struct Stream* stream = userp;
  EXPECT(request == stream->request && flags == TRITONSERVER_REQUEST_RELEASE_ALL);
  __atomic_store_n(&stream->is_released, true, __ATOMIC_RELEASE);
  sem_post(&stream->released);
}

static void begin(TRITONSERVER_Server* server, const char* model, struct Stream* stream) {
  sem_init(&stream->responded, 0, 0);
  sem_init(&stream->ended, 0, 0);
  sem_init(&stream->released, 0, 0);
  OK(TS(InferenceRequestNew)(&stream->request, server, model, -1));
  TRITONSERVER_InferenceRequest* request = stream->request;
  if (strcmp(model, "square") == 0) {
    OK(TS(InferenceRequestAddInput)(request, "IN", TRITONSERVER_TYPE_INT32, row, 2));
    OK(TS(InferenceRequestAppendInputData)(request, "IN", stream->values, 4, TRITONSERVER_MEMORY_CPU, 0));
  } else {
    size_t bytes = (size_t)stream->shape * 4;
    OK(TS(InferenceRequestAddInput)(request, "IN", TRITONSERVER_TYPE_INT32, &stream->shape, 1));
    OK(TS(InferenceRequestAppendInputData)(request, "IN", stream->values, bytes, TRITONSERVER_MEMORY_CPU, 0));
    OK(TS(InferenceRequestAddInput)(request, "DELAY", TRITONSERVER_TYPE_UINT32, &stream->shape, 1));
    OK(TS(InferenceRequestAppendInputData)(request, "DELAY", stream->delays, bytes, TRITONSERVER_MEMORY_CPU, 0));
    OK(TS(InferenceRequestAddInput)(request, "WAIT", TRITONSERVER_TYPE_UINT32, one, 1));
    OK(TS(InferenceRequestAppendInputData)(request, "WAIT", &stream->wait, 4, TRITONSERVER_MEMORY_CPU, 0));
  }
  OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, stream));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, NULL, on_response, stream));
  OK(TS(ServerInferAsync)(server, request, NULL));
}

// Waits for the last response and the request, and for nothing more.
static void end(struct Stream* stream) {
  sem_wait(&stream->ended);
  sem_wait(&stream->released);
  OK(TS(InferenceRequestDelete)(stream->request));
}

static struct Stream* make(int64_t count, uint32_t delay, uint32_t wait) {
  struct Stream* stream = calloc(1, sizeof *stream);
  stream->shape = count;
  stream->wait = wait;
  for (int64_t index = 0; index < count; index++) {
    stream->values[index] = (int32_t)(index * 3 - 5);
    stream->delays[index] = delay;
  }
  return stream;
}

static void expect_all(const struct Stream* stream) {
  EXPECT(stream->count == stream->shape && stream->errors == 0);
  EXPECT(memcmp(stream->got, stream->values, (size_t)stream->count * 4) == 0);
}

static void run_order(TRITONSERVER_Server* server) {
  // The execution is over long before the first response, or not before the last one.
  for (int round = 0; round < 2; round++) {
    struct Stream* stream = make(5, round == 0 ? 60 : 1, round == 0 ? 0 : 300);
    begin(server, "repeat", stream);
    end(stream);
    expect_all(stream);
    EXPECT(stream->was_released_first == (round == 0));
    EXPECT(!pthread_equal(stream->thread, pthread_self()));
    free(stream);
  }
  struct Stream* none = make(0, 0, 0);
  begin(server, "repeat", none);
  end(none);
  expect_all(none);
  free(none);
}

static void run_many(TRITONSERVER_Server* server) {
  struct Stream* streams[STREAMS];
  for (int index = 0; index < STREAMS; index++) begin(server, "repeat", streams[index] = make(50, (uint32_t)index % 3, 0));
  for (int index = 0; index < STREAMS; index++) {
    end(streams[index]);
    expect_all(streams[index]);
    free(streams[index]);
  }
}

static void run_cancelled(TRITONSERVER_Server* server) {
  struct Stream* stream = make(VALUES_MAX, 50, 0);
  begin(server, "repeat", stream);
  sem_wait(&stream->responded);
  OK(TS(InferenceRequestCancel)(stream->request));
  end(stream);
  EXPECT(stream->count < VALUES_MAX && stream->errors == 1);
  free(stream);
}

static void run_statistics(TRITONSERVER_Server* server) {
  struct Stream* stream = make(1, 0, 0);
  stream->values[0] = 4;
  begin(server, "square", stream);
  end(stream);
  EXPECT(stream->count == 4 && stream->got[0] == 4 && stream->got[3] == 4);
  free(stream);
  TRITONSERVER_Message* message = NULL;
  OK(TS(ServerModelStatistics)(server, "square", -1, &message));
  const char* base;
  size_t bytes;
  OK(TS(MessageSerializeToJson)(message, &base, &bytes));
  char* text = strndup(base, bytes);
  const char* place = strstr(text, "\"response_stats\":{");
  if (place == NULL) FAIL("no response statistics in %s", text);
  for (int index = 0; index < 4; index++) {
    char key[64];
    snprintf(key, sizeof key, "\"%d\":{\"compute_infer\":{\"count\":1,", index);
    if (strstr(place, key) == NULL) FAIL("no %s in %s", key, place);
  }
  EXPECT(strstr(place, "\"4\":{\"compute_infer\"") == NULL);
  free(text);
  OK(TS(MessageDelete)(message));
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  TRITONSERVER_Server* server = api_start("streams", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  OK(TS(ResponseAllocatorNew)(&allocator, allocate, release_buffer, NULL));
  run_order(server);
  run_many(server);
  run_cancelled(server);
  run_statistics(server);
  // The end of the server waits for what is still to come.
  struct Stream* last = make(10, 30, 0);
  begin(server, "repeat", last);
  OK(TS(ServerStop)(server));
  EXPECT(sem_trywait(&last->ended) == 0 && sem_trywait(&last->released) == 0);
  expect_all(last);
  OK(TS(InferenceRequestDelete)(last->request));
  free(last);
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  EXPECT(buffers == 0);
  puts("ok");
  return 0;
}
