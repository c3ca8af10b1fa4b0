// A backend whose work on GPU 0 fails as requests ask for. INPUT0 (INT32, one element per request) says what a request does, and OUTPUT0
// repeats it; see `enum Operation`. Instances of KIND_GPU keep batches in flight: a launch of one thread for each request. Instances of
// KIND_CPU take requests that reach into the others' work. The parameter `batch` of a response tells with how many requests it ran.
//
// What kernels that do not end still use is never freed: they may run as long as the process lives.
#include <stdlib.h>

#include "conch/extension.h"
#include "driver.h"

enum Operation {
  ANSWER = 0,  // a kernel that ends
  HANG = 1,    // a kernel that runs until an END
  BREAK = 2,   // a kernel that writes to address 0
  // Of instances of KIND_CPU.
  END = 3,   // ends all kernels that hang
  TAKE = 4,  // takes all memory of the device that there is
  GIVE = 5,  // gives it back
  // All others: a kernel that writes to so many bytes of the server's memory manager.
};

enum { DEPTH = 2, BATCH_MAX = 16, INSTANCES_MAX = 64, TAKEN_MAX = 4096 };
enum { NOT_READY = 600, HOST_PORTABLE_MAPPED = 3 };

#define CHUNK_BYTES_MAX ((size_t)4 << 30)
#define CHUNK_BYTES_MIN ((size_t)64 << 10)

// Writes `value` to `output` once `*ended`, which the host counts up, is `turn`.
static const char KERNEL[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry answer(.param .u64 ended, .param .u64 output, .param .u32 turn, .param .u32 value)\n"
    "{\n"
    "  .reg .pred %p<1>;\n"
    "  .reg .b32 %r<3>;\n"
    "  .reg .b64 %d<2>;\n"
    "  ld.param.u64 %d0, [ended];\n"
    "  cvta.to.global.u64 %d0, %d0;\n"
    "  ld.param.u64 %d1, [output];\n"
    "  cvta.to.global.u64 %d1, %d1;\n"
    "  ld.param.u32 %r0, [turn];\n"
    "  ld.param.u32 %r2, [value];\n"
    "again:\n"
    "  ld.volatile.global.u32 %r1, [%d0];\n"
    "  setp.lt.u32 %p0, %r1, %r0;\n"
    "  @%p0 bra again;\n"
    "  st.global.u32 [%d1], %r2;\n"
    "  ret;\n"
    "}\n";

// Of the process: what instances share. The driver may hold up who allocates or loads a module while a kernel runs, so an instance that
// is made again makes neither.
static struct {
  Context context;
  Function kernel;
  uint32_t* ended;                                  // pinned
  int32_t (*results)[INSTANCES_MAX][DEPTH][BATCH_MAX];  // pinned; no instance gets those of another
  int instance_count;
  uint64_t taken[TAKEN_MAX];
  size_t taken_count;
  struct TRITONBACKEND_MemoryManager* manager;
} shared;

struct Task {
  struct TRITONBACKEND_Request* request;
  int32_t value;
  uint64_t output;  // where its kernel writes
  void* buffer;     // of the memory manager, if it asked for one
  Error* error;
};

struct Batch {
  struct Task tasks[BATCH_MAX];
  uint32_t count;
  Event event;
};

struct Instance {
  struct TRITONBACKEND_ModelInstance* raw;
  TRITONSERVER_InstanceGroupKind kind;
  Stream stream;
  int32_t (*results)[BATCH_MAX];  // one row for each batch
  struct Batch batches[DEPTH];
  uint32_t first, count;
};

// The first of two errors; the other one goes to the log.
static Error* First(Error* first, Error* second) {
  if (first == NULL) return second;
  Tell(second);
  return first;
}

static struct Instance* StateOf(struct TRITONBACKEND_ModelInstance* raw) {
  void* state = NULL;
  Tell(TRITONBACKEND_ModelInstanceState(raw, &state));
  return state;
}

// Requests and responses.

static Error* ReadValue(struct Task* task) {
  struct TRITONBACKEND_Input* input;
  const void* piece;
  uint64_t bytes;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(task->request, "INPUT0", &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, 0, &piece, &bytes, &memory, &device));
  if (memory == TRITONSERVER_MEMORY_GPU || bytes != sizeof task->value) {
    return MakeError(TRITONSERVER_ERROR_INVALID_ARG, "INPUT0", "not one element in host memory");
  }
  memcpy(&task->value, piece, sizeof task->value);
  return NULL;
}

static Error* Fill(const struct Task* task, struct TRITONBACKEND_Response* response, int32_t result, uint32_t batch_size) {
  struct TRITONBACKEND_Input* input;
  struct TRITONBACKEND_Output* output;
  const int64_t* shape;
  uint32_t rank;
  void* target;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(task->request, "INPUT0", &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &rank, NULL, NULL));
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, rank));
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &target, sizeof result, &memory, &device));
  memcpy(target, &result, sizeof result);
  return TRITONBACKEND_ResponseSetIntParameter(response, "batch", batch_size);
}

// Takes `task->error`.
static void Respond(struct Task* task, int32_t result, uint32_t batch_size) {
  struct TRITONBACKEND_Response* response;
  Error* error = TRITONBACKEND_ResponseNew(&response, task->request);
  if (error == NULL) {
    if (task->error == NULL) task->error = Fill(task, response, result, batch_size);
    error = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, task->error);
  }
  Tell(error);
  if (task->error != NULL) TRITONSERVER_ErrorDelete(task->error);
  Tell(TRITONBACKEND_RequestRelease(task->request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

// On the CPU.

static Error* TakeAll(void) {
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(shared.context)));
  for (size_t bytes = CHUNK_BYTES_MAX; bytes >= CHUNK_BYTES_MIN;) {
    if (shared.taken_count == TAKEN_MAX) return MakeError(TRITONSERVER_ERROR_INTERNAL, "TAKE", "too many pieces");
    if (cu.Allocate(&shared.taken[shared.taken_count], bytes) == 0) shared.taken_count++;
    else bytes /= 2;
  }
  return NULL;
}

static Error* GiveAll(void) {
  Error* error = Check("cuCtxSetCurrent", cu.ContextSet(shared.context));
  while (shared.taken_count > 0) error = First(error, Check("cuMemFree", cu.Free(shared.taken[--shared.taken_count])));
  return error;
}

static Error* Control(int32_t operation) {
  switch (operation) {
    case ANSWER: return NULL;
    case END: __atomic_fetch_add(shared.ended, 1, __ATOMIC_SEQ_CST); return NULL;
    case TAKE: return TakeAll();
    case GIVE: return GiveAll();
    default: return MakeError(TRITONSERVER_ERROR_INVALID_ARG, "INPUT0", "not for an instance on a CPU");
  }
}

// Batches.

static Error* Launch(struct Instance* self, struct Task* task, int32_t* result) {
  uint64_t ended = (uint64_t)shared.ended;
  uint32_t turn = task->value == HANG ? __atomic_load_n(shared.ended, __ATOMIC_SEQ_CST) + 1 : 0;
  task->output = task->value == BREAK ? 0 : (uint64_t)result;
  if (task->value > GIVE) {
    Error* error = TRITONBACKEND_MemoryManagerAllocate(shared.manager, &task->buffer, TRITONSERVER_MEMORY_GPU, 0, (uint64_t)task->value);
    if (error != NULL) task->buffer = NULL;
    RETURN_IF_ERROR(error);
    task->output = (uint64_t)task->buffer;
  }
  void* parameters[] = {&ended, &task->output, &turn, &task->value};
  RETURN_IF_ERROR(Check("cuLaunchKernel", cu.Launch(shared.kernel, 1, 1, 1, 1, 1, 1, 0, self->stream, parameters, NULL)));
  if (task->buffer == NULL) return NULL;
  return Check("cuMemcpyAsync", cu.Copy((uint64_t)result, task->output, sizeof *result, self->stream));
}

// Answers the requests of the oldest batch, all with `code` unless it is 0.
static void Finish(struct Instance* self, Code code) {
  struct Batch* batch = &self->batches[self->first];
  const int32_t* results = self->results[self->first];
  self->first = (self->first + 1) % DEPTH;
  self->count--;
  for (uint32_t index = 0; index < batch->count; index++) {
    struct Task* task = &batch->tasks[index];
    if (task->buffer != NULL) Tell(TRITONBACKEND_MemoryManagerFree(shared.manager, task->buffer, TRITONSERVER_MEMORY_GPU, 0));
    task->error = First(task->error, Check("cuEventQuery", code));
    Respond(task, results[index], batch->count);
  }
}

Error* CONCH_ModelInstanceDepthMax(struct TRITONBACKEND_ModelInstance* raw, uint32_t* depth_max) {
  *depth_max = StateOf(raw)->kind == TRITONSERVER_INSTANCEGROUPKIND_GPU ? DEPTH : 0;
  return NULL;
}

Error* CONCH_ModelInstanceEnqueue(struct TRITONBACKEND_ModelInstance* raw, struct TRITONBACKEND_Request** requests, uint32_t count) {
  struct Instance* self = StateOf(raw);
  if (self->count == DEPTH || count > BATCH_MAX) return MakeError(TRITONSERVER_ERROR_INTERNAL, "Enqueue", "too much at once");
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(shared.context)));
  uint32_t place = (self->first + self->count) % DEPTH;
  struct Batch* batch = &self->batches[place];
  batch->count = count;
  for (uint32_t index = 0; index < count; index++) {
    struct Task* task = &batch->tasks[index];
    *task = (struct Task){.request = requests[index]};
    task->error = ReadValue(task);
    if (task->error == NULL) task->error = Launch(self, task, &self->results[place][index]);
  }
  // What was launched may be under way if this fails. Then the next look at an event fails as well: only a broken device refuses it.
  Code code = cu.EventRecord(batch->event, self->stream);
  self->count++;
  if (code != 0) {
    for (uint32_t index = 0; index < count; index++) batch->tasks[index].error = First(batch->tasks[index].error, Check("cuEventRecord", code));
  }
  return NULL;
}

Error* CONCH_ModelInstancePoll(struct TRITONBACKEND_ModelInstance* raw, uint32_t* in_flight_count) {
  struct Instance* self = StateOf(raw);
  Error* error = Check("cuCtxSetCurrent", cu.ContextSet(shared.context));
  while (self->count > 0) {
    Code code = cu.EventQuery(self->batches[self->first].event);
    if (code == NOT_READY) break;
    Finish(self, code);
  }
  *in_flight_count = self->count;
  Tell(error);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance* raw, struct TRITONBACKEND_Request** requests,
                                          const uint32_t count) {
  if (StateOf(raw)->kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) {
    return MakeError(TRITONSERVER_ERROR_UNSUPPORTED, "KIND_GPU", "needs a server that keeps batches in flight");
  }
  for (uint32_t index = 0; index < count; index++) {
    struct Task task = {.request = requests[index]};
    task.error = ReadValue(&task);
    if (task.error == NULL) task.error = Control(task.value);
    Respond(&task, task.value, count);
  }
  return NULL;
}

// Life.

static Error* OpenShared(void) {
  int device;
  Module module;
  RETURN_IF_ERROR(OpenDriver());
  RETURN_IF_ERROR(Check("cuDeviceGet", cu.DeviceGet(&device, 0)));
  RETURN_IF_ERROR(Check("cuDevicePrimaryCtxRetain", cu.ContextRetain(&shared.context, device)));
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(shared.context)));
  RETURN_IF_ERROR(Check("cuModuleLoadData", cu.ModuleLoad(&module, KERNEL)));
  RETURN_IF_ERROR(Check("cuModuleGetFunction", cu.ModuleFunction(&shared.kernel, module, "answer")));
  void *counter, *results;
  RETURN_IF_ERROR(Check("cuMemHostAlloc", cu.HostAllocate(&counter, sizeof *shared.ended, HOST_PORTABLE_MAPPED)));
  RETURN_IF_ERROR(Check("cuMemHostAlloc", cu.HostAllocate(&results, sizeof *shared.results, HOST_PORTABLE_MAPPED)));
  shared.ended = counter;
  *shared.ended = 0;
  shared.results = results;
  return NULL;
}

Error* TRITONBACKEND_Initialize(struct TRITONBACKEND_Backend* backend) {
  RETURN_IF_ERROR(TRITONBACKEND_BackendMemoryManager(backend, &shared.manager));
  return OpenShared();
}

static Error* Open(struct Instance* self) {
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceKind(self->raw, &self->kind));
  if (self->kind != TRITONSERVER_INSTANCEGROUPKIND_GPU) return NULL;
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(shared.context)));
  RETURN_IF_ERROR(Check("cuStreamCreate", cu.StreamCreate(&self->stream, STREAM_NON_BLOCKING)));
  int number = __atomic_fetch_add(&shared.instance_count, 1, __ATOMIC_RELAXED);
  if (number >= INSTANCES_MAX) return MakeError(TRITONSERVER_ERROR_UNAVAILABLE, "instance", "there were too many");
  self->results = (*shared.results)[number];
  for (int index = 0; index < DEPTH; index++) {
    RETURN_IF_ERROR(Check("cuEventCreate", cu.EventCreate(&self->batches[index].event, EVENT_DISABLE_TIMING)));
  }
  return NULL;
}

// Destroys what there is of an instance.
static void Close(struct Instance* self) {
  if (self->stream != NULL) Tell(Check("cuCtxSetCurrent", cu.ContextSet(shared.context)));
  for (int index = 0; index < DEPTH; index++) {
    if (self->batches[index].event != NULL) Tell(Check("cuEventDestroy", cu.EventDestroy(self->batches[index].event)));
  }
  if (self->stream != NULL) Tell(Check("cuStreamDestroy", cu.StreamDestroy(self->stream)));
  free(self);
}

Error* TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance* raw) {
  struct Instance* self = calloc(1, sizeof *self);
  if (self == NULL) return MakeError(TRITONSERVER_ERROR_UNAVAILABLE, "instance", "no memory");
  self->raw = raw;
  Error* error = Open(self);
  if (error == NULL) error = TRITONBACKEND_ModelInstanceSetState(raw, self);
  if (error != NULL) Close(self);
  return error;
}

Error* TRITONBACKEND_ModelInstanceFinalize(struct TRITONBACKEND_ModelInstance* raw) {
  struct Instance* self = StateOf(raw);
  // Servers finalize what failed to initialize, too.
  if (self != NULL) Close(self);
  return NULL;
}
