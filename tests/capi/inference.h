// Inferences that are waited for, with an allocator that notes how it is called: what the programs here share.
#pragma once

#include <semaphore.h>

#include "api.h"

static inline void expect_text(TRITONSERVER_Message* message, const char* expected) {
  const char* base;
  size_t bytes;
  OK(TS(MessageSerializeToJson)(message, &base, &bytes));
  if (strstr(base, expected) == NULL) FAIL("no %s in %s", expected, base);
  OK(TS(MessageDelete)(message));
}

// An allocator that notes how it is called.

struct Notes {
  int starts, allocs, attributes, queries, releases;
  size_t bytes;
  bool refuses;
};

static inline TRITONSERVER_Error* note_start(TRITONSERVER_ResponseAllocator* self, void* userp) {
  (void)self;
  ((struct Notes*)userp)->starts++;
  return NULL;
}

static inline TRITONSERVER_Error* note_alloc(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type,
                                      int64_t id, void* userp, void** buffer, void** buffer_userp,
                                      TRITONSERVER_MemoryType* actual_type, int64_t* actual_id) {
  (void)self, (void)name, (void)type, (void)id;
  struct Notes* notes = userp;
  EXPECT(notes->starts == notes->allocs + 1);
  notes->allocs++;
  notes->bytes = bytes;
  if (notes->refuses) return TS(ErrorNew)(TRITONSERVER_ERROR_UNAVAILABLE, "no room here");
  *buffer = malloc(bytes + 1);
  *buffer_userp = notes;
  *actual_type = TRITONSERVER_MEMORY_CPU_PINNED;
  *actual_id = 3;
  return NULL;
}

static inline TRITONSERVER_Error* note_attributes(TRITONSERVER_ResponseAllocator* self, const char* name,
                                           TRITONSERVER_BufferAttributes* attributes, void* userp, void* buffer_userp) {
  (void)self, (void)name;
  EXPECT(userp == buffer_userp);
  ((struct Notes*)userp)->attributes++;
  return TS(BufferAttributesSetByteSize)(attributes, 1);
}

static inline TRITONSERVER_Error* note_query(TRITONSERVER_ResponseAllocator* self, void* userp, const char* name, size_t* bytes,
                                      TRITONSERVER_MemoryType* type, int64_t* id) {
  (void)self;
  EXPECT(strcmp(name, "OUTPUT0") == 0 && *bytes == 16);
  ((struct Notes*)userp)->queries++;
  *type = TRITONSERVER_MEMORY_CPU_PINNED;
  *id = 5;
  return NULL;
}

static inline TRITONSERVER_Error* note_release(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                        TRITONSERVER_MemoryType type, int64_t id) {
  (void)self;
  struct Notes* notes = buffer_userp;
  EXPECT(bytes == notes->bytes && type == TRITONSERVER_MEMORY_CPU_PINNED && id == 3);
  notes->releases++;
  free(buffer);
  return NULL;
}

// One inference, waited for.

struct Wait {
  sem_t answered, released;
  TRITONSERVER_InferenceResponse* response;
};

static void on_response(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  struct Wait* wait = userp;
  EXPECT(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL);
  wait->response = response;
  sem_post(&wait->answered);
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
  EXPECT(request != NULL && flags == TRITONSERVER_REQUEST_RELEASE_ALL);
  sem_post(&((struct Wait*)userp)->released);
}

static inline TRITONSERVER_ResponseAllocator* make_allocator(void) {
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  OK(TS(ResponseAllocatorNew)(&allocator, note_alloc, note_release, note_start));
  OK(TS(ResponseAllocatorSetBufferAttributesFunction)(allocator, note_attributes));
  OK(TS(ResponseAllocatorSetQueryFunction)(allocator, note_query));
  return allocator;
}

static float four[] = {1, 2, 3, 4};
static const int64_t four_shape[] = {4};

static inline TRITONSERVER_InferenceRequest* make_request(TRITONSERVER_Server* server, const char* model,
                                                   TRITONSERVER_ResponseAllocator* allocator, struct Notes* notes, struct Wait* wait) {
  TRITONSERVER_InferenceRequest* request = NULL;
  OK(TS(InferenceRequestNew)(&request, server, model, -1));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", TRITONSERVER_TYPE_FP32, four_shape, 1));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four, 8, TRITONSERVER_MEMORY_CPU, 0));
  OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", four + 2, 8, TRITONSERVER_MEMORY_CPU, 0));
  sem_init(&wait->answered, 0, 0);
  sem_init(&wait->released, 0, 0);
  OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, wait));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, notes, on_response, wait));
  return request;
}

static inline TRITONSERVER_InferenceResponse* run(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, struct Wait* wait,
                                           TRITONSERVER_InferenceTrace* trace) {
  OK(TS(ServerInferAsync)(server, request, trace));
  sem_wait(&wait->answered);
  sem_wait(&wait->released);
  return wait->response;
}

static inline void expect_four(TRITONSERVER_InferenceResponse* response, struct Notes* notes) {
  OK(TS(InferenceResponseError)(response));
  uint32_t count;
  OK(TS(InferenceResponseOutputCount)(response, &count));
  EXPECT(count == 1);
  struct Output output = output_of(response, 0);
  EXPECT(strcmp(output.name, "OUTPUT0") == 0 && output.data_type == TRITONSERVER_TYPE_FP32 && output.rank == 1 && output.shape[0] == 4);
  EXPECT(output.bytes == sizeof four && memcmp(output.base, four, output.bytes) == 0);
  EXPECT(output.memory_type == TRITONSERVER_MEMORY_CPU_PINNED && output.memory_type_id == 3);
  EXPECT(output.userp == notes);
}

// The value of a response's parameter, which must be there.
static inline const void* parameter(TRITONSERVER_InferenceResponse* response, const char* wanted) {
  uint32_t count;
  OK(TS(InferenceResponseParameterCount)(response, &count));
  for (uint32_t index = 0; index < count; index++) {
    const char* name;
    TRITONSERVER_ParameterType type;
    const void* value;
    OK(TS(InferenceResponseParameter)(response, index, &name, &type, &value));
    if (strcmp(name, wanted) == 0) return value;
  }
  FAIL("no parameter %s", wanted);
}
