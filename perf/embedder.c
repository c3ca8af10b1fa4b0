// Embeds a server and keeps requests of one model in flight: what a small request costs a program that links the library.
//
//   embedder LIBRARY REPOSITORY BACKENDS
//
// Reads lines "<requests in flight> <requests>" and answers each with "<wall ns> <CPU ns> <p50 ns> <p99 ns>". CPU is that of all threads of
// the process. A request is made anew each time, as an embedder does that has a protocol of its own; its answer's bytes are looked at.

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "api.h"

enum { VALUES = 16, IN_FLIGHT_MAX = 1024 };

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;

// A request under way. The response and the release each hold it; whoever is last puts it on the list of those that are over.
struct Call {
  float input[VALUES];
  long long begin_ns;
  atomic_int parties;
  struct Call* next;
};

static struct Call calls[IN_FLIGHT_MAX];
static _Atomic(struct Call*) over;
static sem_t is_over;

static long long now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void leave(struct Call* call) {
  if (atomic_fetch_sub(&call->parties, 1) != 1) return;
  call->next = atomic_load(&over);
  while (!atomic_compare_exchange_weak(&over, &call->next, call)) {}
  sem_post(&is_over);
}

static TRITONSERVER_Error* allocate(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                                    int64_t id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type,
                                    int64_t* actual_id) {
  (void)self, (void)name, (void)type, (void)id, (void)userp;
  *buffer = malloc(bytes);
  *buffer_userp = NULL;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* release_buffer(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                          TRITONSERVER_MemoryType type, int64_t id) {
  (void)self, (void)buffer_userp, (void)bytes, (void)type, (void)id;
  free(buffer);
  return NULL;
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)flags;
  OK(TS(InferenceRequestDelete)(request));
  leave(userp);
}

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  struct Call* call = userp;
  EXPECT(response != NULL && flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  OK(TS(InferenceResponseError)(response));
  struct Output output = output_of(response, 0);
  EXPECT(output.bytes == sizeof call->input && memcmp(output.base, call->input, output.bytes) == 0);
  OK(TS(InferenceResponseDelete)(response));
  leave(call);
}

static void submit(struct Call* call, long long number) {
  static const int64_t shape[] = {1, VALUES};
  TRITONSERVER_InferenceRequest* request = NULL;
  for (int place = 0; place < VALUES; place++) call->input[place] = (float)(number + place);
  atomic_store(&call->parties, 2);
  call->begin_ns = now_ns(CLOCK_MONOTONIC);
  OK(TS(InferenceRequestNew)(&request, server, "identity", -1));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 2));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", call->input, sizeof call->input, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, call));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, NULL, on_response, call));
  OK(TS(ServerInferAsync)(server, request, NULL));
}

// The next one that is over; waits for it.
static struct Call* take_over(void) {
  static struct Call* taken;
  while (sem_wait(&is_over) != 0) {}
  if (taken == NULL) taken = atomic_exchange(&over, NULL);
  struct Call* call = taken;
  taken = call->next;
  return call;
}

static int ascending(const void* left, const void* right) {
  long long a = *(const long long*)left, b = *(const long long*)right;
  return (a > b) - (a < b);
}

static void run(int in_flight, long long count) {
  long long* times = malloc((size_t)count * sizeof *times);
  long long sent = 0, done = 0;
  if (times == NULL) FAIL("no memory for %lld times", count);
  long long wall = -now_ns(CLOCK_MONOTONIC), cpu = -now_ns(CLOCK_PROCESS_CPUTIME_ID);
  while (sent < in_flight && sent < count) {
    submit(&calls[sent], sent);
    sent++;
  }
  while (done < count) {
    struct Call* call = take_over();
    times[done++] = now_ns(CLOCK_MONOTONIC) - call->begin_ns;
    if (sent < count) submit(call, sent++);
  }
  cpu += now_ns(CLOCK_PROCESS_CPUTIME_ID);
  wall += now_ns(CLOCK_MONOTONIC);
  qsort(times, (size_t)count, sizeof *times, ascending);
  printf("%lld %lld %lld %lld\n", wall, cpu, times[count / 2], times[count * 99 / 100]);
  fflush(stdout);
  free(times);
}

int main(int argc, char** argv) {
  int in_flight;
  long long count;
  if (argc != 4) FAIL("LIBRARY REPOSITORY BACKENDS");
  api_open(argv[1]);
  server = api_start("embedded", argv[2], argv[3], TRITONSERVER_MODEL_CONTROL_NONE);
  OK(TS(ResponseAllocatorNew)(&allocator, allocate, release_buffer, NULL));
  sem_init(&is_over, 0, 0);
  printf("ready\n");
  fflush(stdout);
  while (scanf("%d %lld", &in_flight, &count) == 2) {
    if (in_flight < 1 || in_flight > IN_FLIGHT_MAX || count < in_flight) FAIL("%d of %lld requests in flight", in_flight, count);
    run(in_flight, count);
  }
  OK(TS(ServerStop)(server));
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  return 0;
}
