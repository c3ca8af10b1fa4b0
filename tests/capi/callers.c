// Executions by the thread that calls: of `callers`, whose configuration lets it, and never of `plain`. A callback that submits the next
// request has it executed by another thread, so a chain of them is no deeper than one.
//   callers LIBRARY REPOSITORY BACKENDS
#include <pthread.h>
#include <stdatomic.h>

#include "inference.h"

#define ROUNDS 1000
#define CHAIN 5000

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;
static pthread_t caller;
static atomic_int own_responses;

static void note_thread(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  own_responses += pthread_equal(pthread_self(), caller) != 0;
  on_response(response, flags, userp);
}

// How many of ROUNDS requests to `model` the thread that calls executes.
static int own_count(const char* model) {
  atomic_store(&own_responses, 0);
  for (int round = 0; round < ROUNDS; round++) {
    struct Notes notes = {0};
    struct Wait wait;
    TRITONSERVER_InferenceRequest* request = make_request(server, model, allocator, &notes, &wait);
    OK(TS(InferenceRequestSetResponseCallback)(request, allocator, &notes, note_thread, &wait));
    TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
    expect_four(response, &notes);
    OK(TS(InferenceResponseDelete)(response));
    OK(TS(InferenceRequestDelete)(request));
  }
  return atomic_load(&own_responses);
}

// A chain: each response submits the next request.

struct Link {
  struct Notes notes;
  TRITONSERVER_InferenceRequest* request;
};

static struct Link links[CHAIN];
static atomic_int next_link;
static sem_t is_over, is_released;
static _Thread_local int depth, deepest;
static atomic_int deepest_of_all;

static void next_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp);

static void free_request(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)flags, (void)userp;
  OK(TS(InferenceRequestDelete)(request));
  sem_post(&is_released);
}

static void submit_next(void) {
  int number = atomic_fetch_add(&next_link, 1);
  if (number == CHAIN) {
    sem_post(&is_over);
    return;
  }
  struct Link* link = &links[number];
  OK(TS(InferenceRequestNew)(&link->request, server, "callers", -1));
  OK(TS(InferenceRequestAddInput)(link->request, "INPUT0", TRITONSERVER_TYPE_FP32, four_shape, 1));
  OK(TS(InferenceRequestAppendInputData)(link->request, "INPUT0", four, sizeof four, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestSetReleaseCallback)(link->request, free_request, link));
  OK(TS(InferenceRequestSetResponseCallback)(link->request, allocator, &link->notes, next_response, link));
  OK(TS(ServerInferAsync)(server, link->request, NULL));
}

static void next_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  EXPECT(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  struct Link* link = userp;
  expect_four(response, &link->notes);
  OK(TS(InferenceResponseDelete)(response));
  depth++;
  if (depth > deepest) deepest = depth;
  if (deepest > atomic_load(&deepest_of_all)) atomic_store(&deepest_of_all, deepest);
  submit_next();
  depth--;
}

int main(int count, char** words) {
  EXPECT(count == 4);
  api_open(words[1]);
  caller = pthread_self();
  server = api_start("callers", words[2], words[3], TRITONSERVER_MODEL_CONTROL_NONE);
  allocator = make_allocator();
  // The first ones are a core's, and so are some after one that was interrupted.
  int callers = own_count("callers"), ensemble = own_count("ensemble"), plain = own_count("plain");
  printf("callers %d, ensemble %d, plain %d of %d\n", callers, ensemble, plain, ROUNDS);
  EXPECT(callers > 0 && ensemble > 0 && plain == 0);
  sem_init(&is_over, 0, 0);
  sem_init(&is_released, 0, 0);
  submit_next();
  sem_wait(&is_over);
  for (int link = 0; link < CHAIN; link++) sem_wait(&is_released);
  printf("deepest %d\n", atomic_load(&deepest_of_all));
  EXPECT(atomic_load(&deepest_of_all) == 1);
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  puts("ok");
  return 0;
}
