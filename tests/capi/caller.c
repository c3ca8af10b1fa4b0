// A backend for views.c, servers.c, options.c and values.c: asks about everything that an embedder may say of a request, tells it as parameters of the response, and has
// the model `identity` of the same server make the output (with a trace of its own below the request's, if that is traced).
//
// The model has INPUT0 and OUTPUT0, FP32 [-1], without batching.

#define _GNU_SOURCE
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

typedef struct TRITONSERVER_Error Error;

#define TRY(call)                       \
  do {                                  \
    Error* failed_ = (call);            \
    if (failed_ != NULL) return failed_; \
  } while (0)

// What the nested inference brings.
struct Nested {
  sem_t answered, released, traced;
  struct TRITONSERVER_InferenceResponse* response;
};

static char early[256];

static Error* Allocate(struct TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                       int64_t id, void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type,
                       int64_t* actual_id) {
  (void)allocator, (void)name, (void)type, (void)id, (void)userp;
  *buffer = malloc(bytes + 1);
  *buffer_userp = NULL;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static Error* Free(struct TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t bytes,
                   TRITONSERVER_MemoryType type, int64_t id) {
  (void)allocator, (void)buffer_userp, (void)bytes, (void)type, (void)id;
  free(buffer);
  return NULL;
}

static void OnResponse(struct TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  (void)flags;
  struct Nested* nested = userp;
  nested->response = response;
  sem_post(&nested->answered);
}

static void OnRelease(struct TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  (void)flags;
  TRITONSERVER_InferenceRequestDelete(request);
  sem_post(&((struct Nested*)userp)->released);
}

// Asks `identity` for a copy of `base`, and puts it into `target`.
static Error* Ask(struct TRITONSERVER_Server* server, struct TRITONSERVER_InferenceTrace* trace, const void* base, size_t bytes,
                  void* target) {
  struct TRITONSERVER_ResponseAllocator* allocator = NULL;
  struct TRITONSERVER_InferenceRequest* request = NULL;
  TRY(TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1));
  TRY(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Free, NULL));
  struct Nested nested;
  memset(&nested, 0, sizeof nested);
  sem_init(&nested.answered, 0, 0);
  sem_init(&nested.released, 0, 0);
  const int64_t shape[] = {(int64_t)(bytes / sizeof(float))};
  TRY(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  TRY(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", base, bytes, TRITONSERVER_MEMORY_CPU, 0));
  TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(request, OnRelease, &nested));
  TRY(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, OnResponse, &nested));
  struct TRITONSERVER_InferenceTrace* child = NULL;
  TRY(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  TRY(TRITONSERVER_ServerInferAsync(server, request, child));
  sem_wait(&nested.answered);
  sem_wait(&nested.released);
  TRY(TRITONSERVER_InferenceResponseError(nested.response));
  const char* name;
  TRITONSERVER_DataType data_type;
  const int64_t* made_shape;
  uint64_t rank;
  const void* made;
  size_t made_bytes;
  TRITONSERVER_MemoryType type;
  int64_t id;
  void* userp;
  TRY(TRITONSERVER_InferenceResponseOutput(nested.response, 0, &name, &data_type, &made_shape, &rank, &made, &made_bytes, &type, &id, &userp));
  if (made_bytes != bytes) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "the nested output has another size");
  memcpy(target, made, bytes);
  TRY(TRITONSERVER_InferenceResponseDelete(nested.response));
  return TRITONSERVER_ResponseAllocatorDelete(allocator);
}

// The sum of what an instance under `policy` would read.
static Error* Sum(struct TRITONBACKEND_Input* input, const char* policy, double* sum) {
  uint32_t count;
  *sum = 0;
  TRY(TRITONBACKEND_InputPropertiesForHostPolicy(input, policy, NULL, NULL, NULL, NULL, NULL, &count));
  for (uint32_t index = 0; index < count; index++) {
    const void* base;
    uint64_t bytes;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_InputBufferForHostPolicy(input, policy, index, &base, &bytes, &type, &id));
    for (uint64_t place = 0; place < bytes / sizeof(float); place++) *sum += ((const float*)base)[place];
  }
  return NULL;
}

// What the server's options say to the backend, and whether the configuration was to be completed.
static Error* TellSettings(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Response* response) {
  struct TRITONBACKEND_Model* model;
  struct TRITONBACKEND_Backend* backend;
  struct TRITONSERVER_Message* settings;
  const char* base;
  size_t bytes;
  bool completes;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  TRY(TRITONBACKEND_ResponseSetBoolParameter(response, "completes", completes));
  TRY(TRITONBACKEND_ModelBackend(model, &backend));
  TRY(TRITONBACKEND_BackendConfig(backend, &settings));
  TRY(TRITONSERVER_MessageSerializeToJson(settings, &base, &bytes));
  return TRITONBACKEND_ResponseSetStringParameter(response, "settings", base);
}

// The policy of the instance, and on how many CPUs its thread may run.
static Error* TellPolicy(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Response* response) {
  struct TRITONSERVER_Message* policy;
  const char* base;
  size_t bytes;
  TRY(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  TRY(TRITONSERVER_MessageSerializeToJson(policy, &base, &bytes));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "policy", base));
  TRY(TellSettings(instance, response));
  cpu_set_t cpus;
  sched_getaffinity(0, sizeof cpus, &cpus);
  return TRITONBACKEND_ResponseSetIntParameter(response, "cpu_count", CPU_COUNT(&cpus));
}

static Error* Answer(struct TRITONSERVER_Server* server, struct TRITONBACKEND_Request* request, struct TRITONBACKEND_Response* response) {
  size_t query_bytes = 16;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  Error* queried = TRITONBACKEND_RequestOutputBufferProperties(request, "OUTPUT0", &query_bytes, &type, &id);
  if (queried == NULL) {
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, "query_type", type));
    TRY(TRITONBACKEND_ResponseSetIntParameter(response, "query_id", id));
  } else {
    TRY(TRITONBACKEND_ResponseSetStringParameter(response, "query_error", TRITONSERVER_ErrorMessage(queried)));
    TRITONSERVER_ErrorDelete(queried);
  }
  struct TRITONBACKEND_Input* input;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  double common, special;
  TRY(Sum(input, "none_such", &common));
  TRY(Sum(input, "special", &special));
  TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, "common_sum", common));
  TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, "special_sum", special));
  const void* base;
  struct TRITONSERVER_BufferAttributes* attributes;
  void* ipc = NULL;
  size_t bytes = 0;
  TRY(TRITONBACKEND_InputBufferAttributes(input, 0, &base, &attributes));
  TRY(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &ipc));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &bytes));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "ipc", ipc == NULL ? "" : ipc));
  struct TRITONSERVER_InferenceTrace* trace;
  TRY(TRITONBACKEND_RequestTrace(request, &trace));
  TRY(TRITONSERVER_InferenceTraceReportActivity(trace, 11, "called"));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "early", early));
  const int64_t shape[] = {(int64_t)(bytes / sizeof(float))};
  struct TRITONBACKEND_Output* output;
  void* target;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  TRY(TRITONBACKEND_OutputBuffer(output, &target, bytes, &type, &id));
  size_t output_bytes = 0;
  TRY(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &output_bytes));
  const char* input_name;
  TRY(TRITONBACKEND_RequestInputName(request, 0, &input_name));
  if (output_bytes != bytes || strcmp(input_name, "INPUT0") != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "the output has another size, or the input another name");
  }
  return Ask(server, trace, base, bytes, target);
}

// Servers of one process share a backend: as often as it is opened, it is closed.
static int open_count;

Error* TRITONBACKEND_Initialize(struct TRITONBACKEND_Backend* backend) {
  TRITONBACKEND_ExecutionPolicy policy = TRITONBACKEND_EXECUTION_DEVICE_BLOCKING;
  TRY(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  if (policy != TRITONBACKEND_EXECUTION_BLOCKING) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "another policy by itself");
  if (open_count++ > 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_ALREADY_EXISTS, "the backend is open already");
  return NULL;
}

Error* TRITONBACKEND_Finalize(struct TRITONBACKEND_Backend* backend) {
  (void)backend;
  open_count--;
  return NULL;
}

// Reports memory of a model or an instance.
static Error* UseMemory(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Model* model, size_t bytes) {
  struct TRITONSERVER_BufferAttributes* used;
  TRY(TRITONSERVER_BufferAttributesNew(&used));
  Error* error = TRITONSERVER_BufferAttributesSetByteSize(used, bytes);
  if (error == NULL && instance != NULL) error = TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, &used, 1);
  if (error == NULL && model != NULL) error = TRITONBACKEND_ModelReportMemoryUsage(model, &used, 1);
  TRITONSERVER_BufferAttributesDelete(used);
  return error;
}

Error* TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance* instance) { return UseMemory(instance, NULL, 24); }

// A model called `flaky` loads at every second attempt.
static int flaky_count;

Error* TRITONBACKEND_ModelInitialize(struct TRITONBACKEND_Model* model) {
  const char* name;
  TRY(TRITONBACKEND_ModelName(model, &name));
  TRY(UseMemory(NULL, model, 1000));
  if (strcmp(name, "flaky") == 0) {
    return flaky_count++ % 2 == 0 ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "not yet") : NULL;
  }
  // The model's server still starts (whatever others there are): it takes no requests yet, and says so.
  struct TRITONSERVER_Server* server;
  TRY(TRITONBACKEND_ModelServer(model, &server));
  struct TRITONSERVER_InferenceRequest* request;
  Error* refused = TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1);
  if (refused == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "a starting server took a request");
  snprintf(early, sizeof early, "%s", TRITONSERVER_ErrorMessage(refused));
  TRITONSERVER_ErrorDelete(refused);
  return NULL;
}

Error* TRITONBACKEND_ModelInstanceExecute(struct TRITONBACKEND_ModelInstance* instance, struct TRITONBACKEND_Request** requests,
                                          const uint32_t request_count) {
  struct TRITONBACKEND_Model* model;
  struct TRITONSERVER_Server* server;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelServer(model, &server));
  for (uint32_t index = 0; index < request_count; index++) {
    struct TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
    Error* error = TellPolicy(instance, response);
    if (error == NULL) error = Answer(server, requests[index], response);
    TRY(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    TRY(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
