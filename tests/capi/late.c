// Plug-ins that load late: backends opened one after the other, in the order of a seed, when 200 threads exist already.
//   late LIBRARY REPOSITORY BACKENDS SEED MODEL...     a model named echo* repeats its input, and is asked to
#include <pthread.h>

#include "inference.h"

#define THREADS 200

static pthread_barrier_t started;
static sem_t over;

static void* wait_until_over(void* unused) {
  pthread_barrier_wait(&started);
  sem_wait(&over);
  return unused;
}

int main(int count, char** words) {
  EXPECT(count > 5);
  pthread_t threads[THREADS];
  pthread_barrier_init(&started, NULL, THREADS + 1);
  sem_init(&over, 0, 0);
  for (int index = 0; index < THREADS; index++) EXPECT(pthread_create(&threads[index], NULL, wait_until_over, NULL) == 0);
  pthread_barrier_wait(&started);

  api_open(words[1]);
  TRITONSERVER_Server* server = api_start("late", words[2], words[3], TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  TRITONSERVER_ResponseAllocator* allocator = make_allocator();
  char** models = words + 5;
  unsigned seed = (unsigned)atoi(words[4]);
  for (int left = count - 5; left > 0; left--) {
    int chosen = rand_r(&seed) % left;
    char* model = models[chosen];
    models[chosen] = models[left - 1];
    models[left - 1] = model;
    printf("loading %s\n", model);
    fflush(stdout);
    OK(TS(ServerLoadModel)(server, model));
    bool ready = false;
    OK(TS(ServerModelIsReady)(server, model, -1, &ready));
    EXPECT(ready);
    // Those that came earlier go on serving.
    for (int index = left - 1; index < count - 5; index++) {
      if (strncmp(models[index], "echo", 4) != 0) continue;
      struct Notes notes = {0};
      struct Wait wait;
      TRITONSERVER_InferenceRequest* request = make_request(server, models[index], allocator, &notes, &wait);
      TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
      expect_four(response, &notes);
      OK(TS(InferenceResponseDelete)(response));
      OK(TS(InferenceRequestDelete)(request));
    }
  }
  OK(TS(ServerDelete)(server));
  OK(TS(ResponseAllocatorDelete)(allocator));
  for (int index = 0; index < THREADS; index++) sem_post(&over);
  for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
  puts("ok");
  return 0;
}
