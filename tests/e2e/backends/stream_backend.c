/* A backend in C whose instances keep batches in flight. The device is the clock: a batch is done TAKES_NS after the one before it. Each
 * response repeats the input, and says in parameters which function took the request and how many batches were in flight with it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conch/extension.h"

#define DEPTH 3
#define TAKES_NS 20000000ull

typedef struct {
  struct TRITONBACKEND_Request** requests;
  uint32_t count;
  uint32_t depth;
  const char* taken_by;
  uint64_t start_ns, done_ns;
} Batch;

typedef struct {
  struct TRITONBACKEND_ModelInstance* raw;
  Batch batches[DEPTH];
  uint32_t first, count;
  uint64_t free_ns;
} Instance;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

#define TRY(call)                       \
  do {                                  \
    struct TRITONSERVER_Error* error = (call); \
    if (error) return error;            \
  } while (0)

static Instance* state_of(struct TRITONBACKEND_ModelInstance* raw) {
  void* state = NULL;
  struct TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceState(raw, &state);
  if (error) TRITONSERVER_ErrorDelete(error);
  return state;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance* raw) {
  Instance* instance = calloc(1, sizeof *instance);
  if (!instance) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory");
  instance->raw = raw;
  return TRITONBACKEND_ModelInstanceSetState(raw, instance);
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(struct TRITONBACKEND_ModelInstance* raw) {
  free(state_of(raw));
  return NULL;
}

static struct TRITONSERVER_Error* fill(struct TRITONBACKEND_Request* request, struct TRITONBACKEND_Response* response, const Batch* batch) {
  struct TRITONBACKEND_Input* input;
  struct TRITONBACKEND_Output* output;
  const char* name;
  TRITONSERVER_DataType type;
  const int64_t* shape;
  uint32_t dims, pieces;
  uint64_t size, used = 0;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &size, &pieces));
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", type, shape, dims));
  void* target;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRY(TRITONBACKEND_OutputBuffer(output, &target, size, &memory, &id));
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    const void* source;
    uint64_t length;
    memory = TRITONSERVER_MEMORY_CPU;
    TRY(TRITONBACKEND_InputBuffer(input, piece, &source, &length, &memory, &id));
    memcpy((char*)target + used, source, length);
    used += length;
  }
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "taken_by", batch->taken_by));
  return TRITONBACKEND_ResponseSetIntParameter(response, "in_flight", batch->depth);
}

static struct TRITONSERVER_Error* finish(Instance* instance, const Batch* batch) {
  for (uint32_t index = 0; index < batch->count; ++index) {
    struct TRITONBACKEND_Request* request = batch->requests[index];
    struct TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNew(&response, request));
    struct TRITONSERVER_Error* failed = fill(request, response, batch);
    TRY(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
    TRY(TRITONBACKEND_ModelInstanceReportStatistics(instance->raw, request, !failed, batch->start_ns, batch->start_ns, batch->done_ns, now_ns()));
    if (failed) TRITONSERVER_ErrorDelete(failed);
    TRY(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  TRY(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance->raw, batch->count, batch->start_ns, batch->start_ns, batch->done_ns, now_ns()));
  free(batch->requests);
  return NULL;
}

static struct TRITONSERVER_Error* enqueue(Instance* instance, struct TRITONBACKEND_Request** requests, uint32_t count, const char* taken_by) {
  if (instance->count == DEPTH) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "too many batches in flight");
  /* The array is the server's. */
  struct TRITONBACKEND_Request** copy = malloc(count * sizeof *copy);
  if (!copy) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory");
  memcpy(copy, requests, count * sizeof *copy);
  uint64_t now = now_ns();
  instance->free_ns = (instance->free_ns > now ? instance->free_ns : now) + TAKES_NS;
  Batch* batch = &instance->batches[(instance->first + instance->count++) % DEPTH];
  *batch = (Batch){copy, count, instance->count, taken_by, now, instance->free_ns};
  return NULL;
}

static struct TRITONSERVER_Error* poll(Instance* instance) {
  while (instance->count && instance->batches[instance->first].done_ns <= now_ns()) {
    Batch done = instance->batches[instance->first];
    instance->first = (instance->first + 1) % DEPTH;
    --instance->count;
    TRY(finish(instance, &done));
  }
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    struct TRITONBACKEND_ModelInstance* raw, struct TRITONBACKEND_Request** requests, const uint32_t count) {
  Instance* instance = state_of(raw);
  TRY(enqueue(instance, requests, count, "execute"));
  while (instance->count) {
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    struct TRITONSERVER_Error* failed = poll(instance);
    /* The requests are this backend's by now. */
    if (failed) TRITONSERVER_ErrorDelete(failed);
  }
  return NULL;
}

struct TRITONSERVER_Error* CONCH_ModelInstanceDepthMax(struct TRITONBACKEND_ModelInstance* raw, uint32_t* depth_max) {
  (void)raw;
  *depth_max = DEPTH;
  return NULL;
}

struct TRITONSERVER_Error* CONCH_ModelInstanceEnqueue(struct TRITONBACKEND_ModelInstance* raw, struct TRITONBACKEND_Request** requests, uint32_t count) {
  return enqueue(state_of(raw), requests, count, "enqueue");
}

struct TRITONSERVER_Error* CONCH_ModelInstancePoll(struct TRITONBACKEND_ModelInstance* raw, uint32_t* in_flight_count) {
  Instance* instance = state_of(raw);
  struct TRITONSERVER_Error* failed = poll(instance);
  *in_flight_count = instance->count;
  return failed;
}
