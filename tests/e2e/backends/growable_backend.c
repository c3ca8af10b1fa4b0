// A backend with a state that grows: it appends INPUT0 to the state of the sequence, and OUTPUT0 is the whole state.
// The id of a request may ask for something else: "keep" does not finish the state's next value, "ask <n>" asks for a buffer of n bytes.
// Parameters of a response tell where the server had the state: in_memory and in_device of the input, out_memory and out_device of the
// buffer, told_memory and told_device of its attributes, moved if buffer and input have different addresses, and rows of the batch.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct Instance {
  int device;
  Context context;
  Stream stream;
};

Error* TRITONBACKEND_Initialize(struct TRITONBACKEND_Backend* backend) {
  (void)backend;
  return OpenDriver();
}

static Error* Open(struct Instance* self, struct TRITONBACKEND_ModelInstance* instance) {
  int device;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceDeviceId(instance, &self->device));
  RETURN_IF_ERROR(Check("cuDeviceGet", cu.DeviceGet(&device, self->device)));
  RETURN_IF_ERROR(Check("cuDevicePrimaryCtxRetain", cu.ContextRetain(&self->context, device)));
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(self->context)));
  RETURN_IF_ERROR(Check("cuStreamCreate", cu.StreamCreate(&self->stream, STREAM_NON_BLOCKING)));
  return TRITONBACKEND_ModelInstanceSetState(instance, self);
}

Error* TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance* instance) {
  struct Instance* self = calloc(1, sizeof *self);
  return self == NULL ? MakeError(TRITONSERVER_ERROR_UNAVAILABLE, "instance", "no memory") : Open(self, instance);
}

Error* TRITONBACKEND_ModelInstanceFinalize(struct TRITONBACKEND_ModelInstance* instance) {
  void* state = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &state));
  struct Instance* self = state;
  if (self == NULL) return NULL;
  Error* error = Check("cuCtxSetCurrent", cu.ContextSet(self->context));
  if (error == NULL) error = Check("cuStreamDestroy", cu.StreamDestroy(self->stream));
  cu.ContextSet(NULL);
  cu.ContextRelease(self->device);
  free(self);
  return error;
}

struct Piece {
  const void* base;
  uint64_t bytes;
  TRITONSERVER_MemoryType memory;
  int64_t device;
};

// An input in one piece.
static Error* Read(struct Instance* self, struct TRITONBACKEND_Request* request, const char* name, struct Piece* piece) {
  struct TRITONBACKEND_Input* input;
  uint32_t pieces = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, NULL, &pieces));
  if (pieces != 1) return MakeError(TRITONSERVER_ERROR_INTERNAL, name, "not in one piece");
  piece->memory = TRITONSERVER_MEMORY_GPU, piece->device = self->device;
  return TRITONBACKEND_InputBuffer(input, 0, &piece->base, &piece->bytes, &piece->memory, &piece->device);
}

static Error* Copy(struct Instance* self, void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return NULL;
  RETURN_IF_ERROR(Check("cuMemcpyAsync", cu.Copy((uint64_t)to, (uint64_t)from, bytes, self->stream)));
  return Check("cuStreamSynchronize", cu.StreamSynchronize(self->stream));
}

static Error* Answer(struct Instance* self, struct TRITONBACKEND_Request* request, struct TRITONBACKEND_Response* response, int64_t rows) {
  struct Piece given = {0}, held = {0};
  struct TRITONBACKEND_State* state;
  struct TRITONBACKEND_Output* output;
  struct TRITONSERVER_BufferAttributes* attributes;
  const char* id;
  void *buffer, *target;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU, told_memory = TRITONSERVER_MEMORY_CPU, host = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0, told_device = -1, host_id = 0;
  uint64_t asked;
  RETURN_IF_ERROR(Check("cuCtxSetCurrent", cu.ContextSet(self->context)));
  RETURN_IF_ERROR(TRITONBACKEND_RequestId(request, &id));
  RETURN_IF_ERROR(Read(self, request, "INPUT0", &given));
  RETURN_IF_ERROR(Read(self, request, "STATE_IN", &held));
  const uint64_t total = held.bytes + given.bytes;
  const int64_t shape[] = {1, (int64_t)total};
  RETURN_IF_ERROR(TRITONBACKEND_StateNew(&state, request, "STATE_OUT", TRITONSERVER_TYPE_UINT8, shape, 2));
  if (sscanf(id, "ask %" SCNu64, &asked) != 1) asked = total;
  RETURN_IF_ERROR(TRITONBACKEND_StateBuffer(state, &buffer, asked, &memory, &device));
  RETURN_IF_ERROR(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  RETURN_IF_ERROR(TRITONSERVER_BufferAttributesMemoryType(attributes, &told_memory));
  RETURN_IF_ERROR(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &told_device));
  RETURN_IF_ERROR(Copy(self, (char*)buffer + held.bytes, given.base, given.bytes));
  if (strcmp(id, "keep") != 0) RETURN_IF_ERROR(TRITONBACKEND_StateUpdate(state));
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_UINT8, shape, 2));
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &target, total, &host, &host_id));
  RETURN_IF_ERROR(Copy(self, target, buffer, total));
  const struct {
    const char* name;
    int64_t value;
  } facts[] = {
      {"in_memory", held.memory},     {"in_device", held.device},   {"out_memory", memory},         {"out_device", device},
      {"told_memory", told_memory},   {"told_device", told_device}, {"moved", buffer != held.base}, {"rows", rows},
  };
  for (size_t index = 0; index < ARRAY_LENGTH(facts); index++) {
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSetIntParameter(response, facts[index].name, facts[index].value));
  }
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
                                          const uint32_t count) {
  void* self = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &self));
  for (uint32_t index = 0; index < count; index++) {
    struct TRITONBACKEND_Response* response;
    Error* error = TRITONBACKEND_ResponseNew(&response, requests[index]);
    if (error == NULL) {
      error = Answer(self, requests[index], response, count);
      Tell(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
      if (error != NULL) TRITONSERVER_ErrorDelete(error);
    } else {
      Tell(error);
    }
    Tell(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
