// Embeds the server, sends it many asynchronous requests from several threads with cancels in between, and ends it.
//
//   flood LIBRARY REPOSITORY BACKENDS REQUESTS THREADS MODEL
//
// The repository has the model: `identity` (FP32 [16]), which takes delays by parameter, or `add_sub` (two of FP32 [16]; sum and difference).
// Every request must get exactly one final response, right or CANCELLED, and its release; every buffer must come back.

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "api.h"

enum { VALUES = 16, IN_FLIGHT_MAX = 64 };

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;
static int per_thread;
static const char* model;
static bool adds;
static atomic_int good, cancelled, released, allocated, freed;

// One request: its input, and who waits for it.
struct Call {
  float input[VALUES], other[VALUES];
  bool is_cancelled;
  // The release, the response and the sender each hold it. Cancelling is allowed while the request exists, so none of the first two may
  // delete it before the sender is done.
  atomic_int parties;
  TRITONSERVER_InferenceRequest* request;
  sem_t* window;
};

static void leave(struct Call* call) {
  if (atomic_fetch_sub(&call->parties, 1) != 1) return;
  OK(TS(InferenceRequestDelete)(call->request));
  free(call);
}

static TRITONSERVER_Error* allocate(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                                    int64_t id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type,
                                    int64_t* actual_id) {
  (void)self, (void)type, (void)id, (void)userp;
  EXPECT(strcmp(name, "OUTPUT0") == 0 || (adds && strcmp(name, "OUTPUT1") == 0));
  *buffer = malloc(bytes);
  *buffer_userp = *buffer;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  atomic_fetch_add(&allocated, 1);
  return NULL;
}

static TRITONSERVER_Error* release_buffer(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                          TRITONSERVER_MemoryType type, int64_t id) {
  (void)self, (void)bytes, (void)type, (void)id;
  EXPECT(buffer == buffer_userp);
  free(buffer);
  atomic_fetch_add(&freed, 1);
  return NULL;
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  struct Call* call = userp;
  EXPECT(flags == TRITONSERVER_REQUEST_RELEASE_ALL && request == call->request);
  atomic_fetch_add(&released, 1);
  leave(call);
}

static void expect_output(TRITONSERVER_InferenceResponse* response, const struct Call* call, uint32_t index) {
  struct Output output = output_of(response, index);
  EXPECT(output.rank == 1 && output.shape[0] == VALUES && output.bytes == sizeof call->input && output.userp == output.base);
  int sign = !adds ? 0 : strcmp(output.name, "OUTPUT0") == 0 ? 1 : -1;
  for (int place = 0; place < VALUES; place++) {
    EXPECT(((const float*)output.base)[place] == call->input[place] + (float)sign * call->other[place]);
  }
}

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  struct Call* call = userp;
  EXPECT(response != NULL && flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  TRITONSERVER_Error* error = TS(InferenceResponseError)(response);
  if (error != NULL) {
    if (TS(ErrorCode)(error) != TRITONSERVER_ERROR_CANCELLED || !call->is_cancelled) FAIL("%s", TS(ErrorMessage)(error));
    TS(ErrorDelete)(error);
    atomic_fetch_add(&cancelled, 1);
  } else {
    uint32_t outputs;
    OK(TS(InferenceResponseOutputCount)(response, &outputs));
    EXPECT(outputs == (adds ? 2 : 1));
    for (uint32_t index = 0; index < outputs; index++) expect_output(response, call, index);
    atomic_fetch_add(&good, 1);
  }
  OK(TS(InferenceResponseDelete)(response));
  sem_post(call->window);
  leave(call);
}

static void* sender(void* argument) {
  int number = (int)(intptr_t)argument;
  sem_t window;
  sem_init(&window, 0, IN_FLIGHT_MAX);
  for (int index = 0; index < per_thread; index++) {
    sem_wait(&window);
    struct Call* call = calloc(1, sizeof *call);
    call->window = &window;
    call->is_cancelled = index % 3 == 0;
    atomic_store(&call->parties, 3);
    for (int place = 0; place < VALUES; place++) {
      call->input[place] = (float)(number * per_thread + index + place);
      call->other[place] = (float)place;
    }
    const int64_t shape[] = {VALUES};
    TRITONSERVER_InferenceRequest* request = NULL;
    OK(TS(InferenceRequestNew)(&request, server, model, -1));
    OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
    OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", call->input, sizeof call->input, TRITONSERVER_MEMORY_CPU, 0));
    if (adds) {
      OK(TS(InferenceRequestAddInput)(request, "INPUT1", TRITONSERVER_TYPE_FP32, shape, 1));
      OK(TS(InferenceRequestAppendInputData)(request, "INPUT1", call->other, sizeof call->other, TRITONSERVER_MEMORY_CPU, 0));
    }
    OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, call));
    OK(TS(InferenceRequestSetResponseCallback)(request, allocator, NULL, on_response, call));
    // A slow one now and then lets the others queue.
    if (!adds && index % 50 == 0) OK(TS(InferenceRequestSetIntParameter)(request, "delay_us", 1000));
    call->request = request;
    OK(TS(ServerInferAsync)(server, request, NULL));
    if (call->is_cancelled) OK(TS(InferenceRequestCancel)(request));
    leave(call);
  }
  for (int index = 0; index < IN_FLIGHT_MAX; index++) sem_wait(&window);
  return NULL;
}

int main(int count, char** words) {
  EXPECT(count == 7);
  api_open(words[1]);
  model = words[6];
  adds = strcmp(model, "add_sub") == 0;
  int total = atoi(words[4]), thread_count = atoi(words[5]);
  per_thread = total / thread_count;
  server = api_start("flood", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  bool is_ready = false;
  OK(TS(ServerIsReady)(server, &is_ready));
  EXPECT(is_ready);
  OK(TS(ResponseAllocatorNew)(&allocator, allocate, release_buffer, NULL));
  pthread_t threads[64];
  for (int index = 0; index < thread_count; index++) pthread_create(&threads[index], NULL, sender, (void*)(intptr_t)index);
  for (int index = 0; index < thread_count; index++) pthread_join(threads[index], NULL);
  OK(TS(ServerStop)(server));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  EXPECT(good + cancelled == total && released == total && allocated == freed);
  printf("good %d, cancelled %d\n", good, cancelled);
  return 0;
}
