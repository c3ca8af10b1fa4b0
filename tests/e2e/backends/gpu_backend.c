// A backend for GPUs: OUTPUT0 repeats INPUT0 by way of a working buffer from the server's memory manager, with copies on a stream of the
// instance. Parameters of a model:
//   memory         where the working buffer lies: cpu (default), pinned or gpu
//   memory_device  on which GPU; the instance's own by default
//   output         where the output is wanted: cpu or gpu (default)
//   input          where INPUT0 must lie: cpu, pinned or gpu; else the request fails
//   fail           oversize: asks for 2^60 bytes; bad-free: frees what was not allocated. The response is the server's error
// Parameters of a response tell what the server gave: input_memory, input_device and input_buffers, attributes_memory and
// attributes_device, output_memory and output_device; input_handle and output_handle, the hexadecimal CUDA IPC handles of the buffers'
// attributes, empty without one. context_moved counts calls of the server that left another context current.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define OVERSIZE (1ULL << 60)
#define HANDLE_BYTES 64

// The first of two errors; the other one goes to the log.
static Error* First(Error* first, Error* second) {
  if (first == NULL) return second;
  Tell(second);
  return first;
}

// Instances.

enum Failing { FAIL_NOT, FAIL_OVERSIZE, FAIL_BAD_FREE };

struct Instance {
  TRITONSERVER_InstanceGroupKind kind;
  int device;
  TRITONSERVER_MemoryType memory, output;
  int64_t memory_device;
  int expected_input;  // a TRITONSERVER_MemoryType, or -1
  enum Failing failing;
  struct TRITONBACKEND_MemoryManager* manager;
  Context context;
  Stream stream;
  Event event;
};

static TRITONSERVER_MemoryType Preferred(const struct Instance* self) {
  return self->kind == TRITONSERVER_INSTANCEGROUPKIND_GPU ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
}

// The text of a parameter in a model's configuration, or `fallback`. Takes texts without escapes.
static void Parameter(const char* config, const char* key, const char* fallback, char* text, size_t room) {
  char quoted[64];
  snprintf(text, room, "%s", fallback);
  snprintf(quoted, sizeof quoted, "\"%s\"", key);
  const char* at = strstr(config, "\"parameters\"");
  if (at != NULL) at = strstr(at, quoted);
  if (at != NULL) at = strstr(at, "\"string_value\"");
  if (at != NULL) at = strchr(at + strlen("\"string_value\""), '"');
  if (at != NULL) snprintf(text, room, "%.*s", (int)strcspn(at + 1, "\""), at + 1);
}

// Where `text` stands among `words`.
static Error* Choose(const char* key, const char* text, const char* const* words, int count, int* chosen) {
  for (int index = 0; index < count; index++) {
    if (strcmp(words[index], text) != 0) continue;
    *chosen = index;
    return NULL;
  }
  return MakeError(TRITONSERVER_ERROR_INVALID_ARG, key, text);
}

static Error* ReadSettings(struct Instance* self, const char* config) {
  static const char* const memories[] = {"cpu", "pinned", "gpu"};  // as TRITONSERVER_MemoryType
  static const char* const failings[] = {"", "oversize", "bad-free"};
  char text[32];
  int chosen = 0;
  Parameter(config, "memory", "cpu", text, sizeof text);
  RETURN_IF_ERROR(Choose("memory", text, memories, 3, &chosen));
  self->memory = (TRITONSERVER_MemoryType)chosen;
  Parameter(config, "output", "gpu", text, sizeof text);
  RETURN_IF_ERROR(Choose("output", text, memories, 3, &chosen));
  self->output = (TRITONSERVER_MemoryType)chosen;
  static const char* const expected[] = {"cpu", "pinned", "gpu", ""};
  Parameter(config, "input", "", text, sizeof text);
  RETURN_IF_ERROR(Choose("input", text, expected, 4, &chosen));
  self->expected_input = chosen < 3 ? chosen : -1;
  Parameter(config, "fail", "", text, sizeof text);
  RETURN_IF_ERROR(Choose("fail", text, failings, 3, &chosen));
  self->failing = (enum Failing)chosen;
  // The server frees host memory by free(), which has no way to refuse.
  if (self->failing == FAIL_BAD_FREE && self->memory == TRITONSERVER_MEMORY_CPU) {
    return MakeError(TRITONSERVER_ERROR_INVALID_ARG, "bad-free", "needs memory pinned or gpu");
  }
  Parameter(config, "memory_device", "", text, sizeof text);
  self->memory_device = self->memory != TRITONSERVER_MEMORY_GPU ? 0 : text[0] != '\0' ? atoi(text) : self->device;
  return NULL;
}

static Error* ReadConfig(struct Instance* self, struct TRITONBACKEND_Model* model) {
  struct TRITONSERVER_Message* message;
  const char* base;
  size_t bytes;
  RETURN_IF_ERROR(TRITONBACKEND_ModelConfig(model, 1, &message));
  Error* error = TRITONSERVER_MessageSerializeToJson(message, &base, &bytes);
  if (error == NULL) {
    char* config = strndup(base, bytes);
    error = config == NULL ? MakeError(TRITONSERVER_ERROR_UNAVAILABLE, "configuration", "no memory") : ReadSettings(self, config);
    free(config);
  }
  return First(error, TRITONSERVER_MessageDelete(message));
}

static Error* OpenDevice(struct Instance* self) {
  int device;
  RETURN_IF_ERROR(Check("cuDeviceGet", cu.DeviceGet(&device, self->device)));
  RETURN_IF_ERROR(Check("cuDevicePrimaryCtxRetain", cu.ContextRetain(&self->context, device)));
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(self->context)));
  RETURN_IF_ERROR(Check("cuStreamCreate", cu.StreamCreate(&self->stream, STREAM_NON_BLOCKING)));
  return Check("cuEventCreate", cu.EventCreate(&self->event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING));
}

// Destroys what there is of an instance.
static Error* Close(struct Instance* self) {
  Error* error = NULL;
  if (self->context != NULL) {
    error = Check("cuCtxSetCurrent", cu.ContextSet(self->context));
    if (self->event != NULL) error = First(error, Check("cuEventDestroy", cu.EventDestroy(self->event)));
    if (self->stream != NULL) error = First(error, Check("cuStreamDestroy", cu.StreamDestroy(self->stream)));
    error = First(error, Check("cuCtxSetCurrent", cu.ContextSet(NULL)));
    error = First(error, Check("cuDevicePrimaryCtxRelease", cu.ContextRelease(self->device)));
  }
  free(self);
  return error;
}

static Error* Open(struct Instance* self, struct TRITONBACKEND_ModelInstance* instance) {
  struct TRITONBACKEND_Model* model;
  struct TRITONBACKEND_Backend* backend;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceKind(instance, &self->kind));
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceDeviceId(instance, &self->device));
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(TRITONBACKEND_ModelBackend(model, &backend));
  RETURN_IF_ERROR(TRITONBACKEND_BackendMemoryManager(backend, &self->manager));
  RETURN_IF_ERROR(ReadConfig(self, model));
  RETURN_IF_ERROR(OpenDevice(self));
  return TRITONBACKEND_ModelInstanceSetState(instance, self);
}

// One request.

struct Task {
  struct Instance* self;
  struct TRITONBACKEND_Input* input;
  uint64_t bytes;
  uint32_t pieces;
  void *target, *working;
  int64_t input_memory, input_device, attributes_memory, attributes_device, output_memory, output_device;
  int64_t context_moved;
  char input_handle[2 * HANDLE_BYTES + 1], output_handle[2 * HANDLE_BYTES + 1];
};

// After a call of the server: the instance's context is to be current still.
static Error* KeepContext(struct Task* task, Error* error) {
  Context current = NULL;
  Error* more = Check("cuCtxGetCurrent", cu.ContextGet(&current));
  if (more == NULL && current != task->self->context) {
    task->context_moved++;
    more = Check("cuCtxSetCurrent", cu.ContextSet(task->self->context));
  }
  return First(error, more);
}

static Error* Allocate(struct Task* task, void** buffer, uint64_t bytes) {
  struct Instance* self = task->self;
  return KeepContext(task, TRITONBACKEND_MemoryManagerAllocate(self->manager, buffer, self->memory, self->memory_device, bytes));
}

static Error* Free(struct Task* task, void* buffer) {
  struct Instance* self = task->self;
  return KeepContext(task, TRITONBACKEND_MemoryManagerFree(self->manager, buffer, self->memory, self->memory_device));
}

static Error* EnqueueCopy(struct Task* task, void* to, const void* from, uint64_t bytes) {
  return Check("cuMemcpyAsync", cu.Copy((uint64_t)to, (uint64_t)from, bytes, task->self->stream));
}

static Error* EnqueueInput(struct Task* task) {
  uint64_t done = 0;
  for (uint32_t index = 0; index < task->pieces; index++) {
    const void* piece = NULL;
    uint64_t bytes = 0;
    TRITONSERVER_MemoryType memory = Preferred(task->self);
    int64_t device = task->self->device;
    Error* error = TRITONBACKEND_InputBuffer(task->input, index, &piece, &bytes, &memory, &device);
    RETURN_IF_ERROR(KeepContext(task, error));
    if (index == 0) task->input_memory = memory, task->input_device = device;
    if (task->self->expected_input >= 0 && (int)memory != task->self->expected_input) {
      return MakeError(TRITONSERVER_ERROR_INTERNAL, "INPUT0", "it lies in other memory than expected");
    }
    if (bytes > task->bytes - done) return MakeError(TRITONSERVER_ERROR_INTERNAL, "INPUT0", "its buffers are longer than the input");
    if (bytes > 0) RETURN_IF_ERROR(EnqueueCopy(task, (char*)task->working + done, piece, bytes));
    done += bytes;
  }
  if (done != task->bytes) return MakeError(TRITONSERVER_ERROR_INTERNAL, "INPUT0", "its buffers are shorter than the input");
  return NULL;
}

static Error* Enqueue(struct Task* task) {
  RETURN_IF_ERROR(EnqueueInput(task));
  return task->bytes > 0 ? EnqueueCopy(task, task->target, task->working, task->bytes) : NULL;
}

// Until the stream is done with the task's memory, whatever became of its copies.
static Error* Wait(struct Task* task) {
  struct Instance* self = task->self;
  Error* error = Check("cuEventRecord", cu.EventRecord(self->event, self->stream));
  if (error != NULL) return First(error, Check("cuStreamSynchronize", cu.StreamSynchronize(self->stream)));
  return Check("cuEventSynchronize", cu.EventSynchronize(self->event));
}

static Error* Repeat(struct Task* task) {
  RETURN_IF_ERROR(Allocate(task, &task->working, task->bytes));
  Error* error = Enqueue(task);
  error = First(error, Wait(task));
  return First(error, Free(task, task->working));
}

// The error of the last wrong call; every one has to be refused.
static Error* FreeWrongly(struct Task* task) {
  struct Instance* self = task->self;
  char local = 0;
  RETURN_IF_ERROR(Allocate(task, &task->working, task->bytes));
  void* wrong[] = {NULL, &local, (char*)task->working + 1, (char*)task->working + 256};
  for (size_t index = 0; index < ARRAY_LENGTH(wrong); index++) {
    Error* error = Free(task, wrong[index]);
    if (error == NULL) return MakeError(TRITONSERVER_ERROR_INTERNAL, "bad-free", "an address was freed that was not allocated");
    if (TRITONSERVER_ErrorCode(error) != TRITONSERVER_ERROR_INVALID_ARG) return error;
    TRITONSERVER_ErrorDelete(error);
  }
  TRITONSERVER_MemoryType other = self->memory == TRITONSERVER_MEMORY_GPU ? TRITONSERVER_MEMORY_CPU_PINNED : TRITONSERVER_MEMORY_GPU;
  Error* error = KeepContext(task, TRITONBACKEND_MemoryManagerFree(self->manager, task->working, other, self->device));
  if (error == NULL) return MakeError(TRITONSERVER_ERROR_INTERNAL, "bad-free", "memory was freed as of another type");
  TRITONSERVER_ErrorDelete(error);
  RETURN_IF_ERROR(Free(task, task->working));
  error = Free(task, task->working);
  return error != NULL ? error : MakeError(TRITONSERVER_ERROR_INTERNAL, "bad-free", "an address was freed twice");
}

static Error* AskTooMuch(struct Task* task) {
  void* buffer = NULL;
  Error* error = Allocate(task, &buffer, OVERSIZE);
  if (error != NULL) return error;
  return First(MakeError(TRITONSERVER_ERROR_INTERNAL, "oversize", "2^60 bytes were given"), Free(task, buffer));
}

static Error* ReadHandle(struct TRITONSERVER_BufferAttributes* attributes, char* text) {
  void* handle = NULL;
  RETURN_IF_ERROR(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
  for (int index = 0; handle != NULL && index < HANDLE_BYTES; index++) sprintf(text + 2 * index, "%02x", ((unsigned char*)handle)[index]);
  return NULL;
}

static Error* ReadAttributes(struct Task* task) {
  struct TRITONSERVER_BufferAttributes* attributes = NULL;
  const void* buffer;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  if (task->pieces == 0) return NULL;
  RETURN_IF_ERROR(TRITONBACKEND_InputBufferAttributes(task->input, 0, &buffer, &attributes));
  RETURN_IF_ERROR(TRITONSERVER_BufferAttributesMemoryType(attributes, &memory));
  task->attributes_memory = memory;
  RETURN_IF_ERROR(ReadHandle(attributes, task->input_handle));
  return TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &task->attributes_device);
}

static Error* Describe(const struct Task* task, struct TRITONBACKEND_Response* response) {
  const struct {
    const char* name;
    int64_t value;
  } facts[] = {
      {"input_memory", task->input_memory},
      {"input_device", task->input_device},
      {"input_buffers", task->pieces},
      {"attributes_memory", task->attributes_memory},
      {"attributes_device", task->attributes_device},
      {"output_memory", task->output_memory},
      {"output_device", task->output_device},
      {"context_moved", task->context_moved},
  };
  for (size_t index = 0; index < ARRAY_LENGTH(facts); index++) {
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSetIntParameter(response, facts[index].name, facts[index].value));
  }
  RETURN_IF_ERROR(TRITONBACKEND_ResponseSetStringParameter(response, "input_handle", task->input_handle));
  return TRITONBACKEND_ResponseSetStringParameter(response, "output_handle", task->output_handle);
}

static Error* Answer(struct Instance* self, struct TRITONBACKEND_Request* request, struct TRITONBACKEND_Response* response) {
  struct Task task = {.self = self};
  struct TRITONBACKEND_Output* output;
  TRITONSERVER_DataType data_type;
  const int64_t* shape;
  uint32_t rank;
  // The server may call from any thread.
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(self->context)));
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, "INPUT0", &task.input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(task.input, NULL, &data_type, &shape, &rank, &task.bytes, &task.pieces));
  if (self->failing == FAIL_OVERSIZE) return AskTooMuch(&task);
  if (self->failing == FAIL_BAD_FREE) return FreeWrongly(&task);
  RETURN_IF_ERROR(ReadAttributes(&task));
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", data_type, shape, rank));
  TRITONSERVER_MemoryType memory = self->output;
  task.output_device = self->device;
  Error* error = TRITONBACKEND_OutputBuffer(output, &task.target, task.bytes, &memory, &task.output_device);
  RETURN_IF_ERROR(KeepContext(&task, error));
  task.output_memory = memory;
  struct TRITONSERVER_BufferAttributes* attributes;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  RETURN_IF_ERROR(ReadHandle(attributes, task.output_handle));
  RETURN_IF_ERROR(Repeat(&task));
  return Describe(&task, response);
}

static void Execute(struct Instance* self, struct TRITONBACKEND_Request* request) {
  struct TRITONBACKEND_Response* response;
  Error* error = TRITONBACKEND_ResponseNew(&response, request);
  if (error == NULL) {
    error = Answer(self, request, response);
    Tell(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
  } else {
    Tell(error);
  }
  Tell(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

// Entry points.

Error* TRITONBACKEND_Initialize(struct TRITONBACKEND_Backend* backend) {
  (void)backend;
  return OpenDriver();
}

Error* TRITONBACKEND_Finalize(struct TRITONBACKEND_Backend* backend) {
  (void)backend;
  if (cu.library != NULL) dlclose(cu.library);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance* instance) {
  struct Instance* self = calloc(1, sizeof *self);
  if (self == NULL) return MakeError(TRITONSERVER_ERROR_UNAVAILABLE, "instance", "no memory");
  Error* error = Open(self, instance);
  return error == NULL ? NULL : First(error, Close(self));
}

Error* TRITONBACKEND_ModelInstanceFinalize(struct TRITONBACKEND_ModelInstance* instance) {
  void* state = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &state));
  return state == NULL ? NULL : Close(state);
}

Error* TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
                                          const uint32_t count) {
  void* state = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &state));
  for (uint32_t index = 0; index < count; index++) Execute(state, requests[index]);
  return NULL;
}
