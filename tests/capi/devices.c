// Inputs and outputs of an embedder in memory of a GPU: where the backend sees them, and what allocators may grant.
// Arguments: the library, a repository, a directory of backends, "present" or "absent": whether there is a GPU.
#include <stdint.h>

#include "inference.h"

enum { BYTES = 1000, HANDLE_BYTES = 64 };

// The driver.

static struct {
  int (*Init)(unsigned flags);
  int (*ContextRetain)(void** context, int device);
  int (*ContextSet)(void* context);
  int (*Alloc)(uint64_t* address, size_t bytes);
  int (*Free)(uint64_t address);
  int (*Copy)(uint64_t to, uint64_t from, size_t bytes, void* stream);
  int (*Synchronize)(void* stream);
} cu;

static void open_driver(void) {
  const struct {
    const char* name;
    void* place;
  } functions[] = {
      {"cuInit", &cu.Init},           {"cuDevicePrimaryCtxRetain", &cu.ContextRetain}, {"cuCtxSetCurrent", &cu.ContextSet},
      {"cuMemAlloc_v2", &cu.Alloc},   {"cuMemFree_v2", &cu.Free},                      {"cuMemcpyAsync", &cu.Copy},
      {"cuStreamSynchronize", &cu.Synchronize},
  };
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) FAIL("%s", dlerror());
  for (size_t index = 0; index < sizeof functions / sizeof functions[0]; index++) {
    void* found = dlsym(library, functions[index].name);
    if (found == NULL) FAIL("no %s", functions[index].name);
    memcpy(functions[index].place, &found, sizeof found);
  }
  EXPECT(cu.Init(0) == 0);
}

// Allocators may be called from any thread: each call makes the context current.
static void* context;

static void enter(void) {
  if (context == NULL) EXPECT(cu.ContextRetain(&context, 0) == 0);
  EXPECT(cu.ContextSet(context) == 0);
}

static void* device_alloc(size_t bytes) {
  uint64_t address;
  enter();
  EXPECT(cu.Alloc(&address, bytes) == 0);
  return (void*)address;
}

static void device_free(void* memory) {
  enter();
  EXPECT(cu.Free((uint64_t)memory) == 0);
}

static void device_copy(void* to, const void* from, size_t bytes) {
  enter();
  EXPECT(cu.Copy((uint64_t)to, (uint64_t)from, bytes, NULL) == 0 && cu.Synchronize(NULL) == 0);
}

// An allocator that grants what it is told to.

struct Grants {
  int kind;  // a TRITONSERVER_MemoryType, or -1 for what is asked
  int allocs, releases;
  TRITONSERVER_MemoryType asked;
  int64_t asked_id;
};

static TRITONSERVER_Error* grant(TRITONSERVER_ResponseAllocator* self, const char* name, size_t bytes, TRITONSERVER_MemoryType type, int64_t id,
                                 void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual_type, int64_t* actual_id) {
  (void)self, (void)name;
  struct Grants* grants = userp;
  grants->allocs++;
  grants->asked = type, grants->asked_id = id;
  *actual_type = grants->kind < 0 ? type : (TRITONSERVER_MemoryType)grants->kind;
  *actual_id = 0;
  *buffer = *actual_type == TRITONSERVER_MEMORY_GPU ? device_alloc(bytes) : malloc(bytes);
  *buffer_userp = grants;
  return NULL;
}

static TRITONSERVER_Error* take_back(TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t bytes,
                                     TRITONSERVER_MemoryType type, int64_t id) {
  (void)self, (void)bytes, (void)id;
  ((struct Grants*)buffer_userp)->releases++;
  if (type == TRITONSERVER_MEMORY_GPU) device_free(buffer);
  else free(buffer);
  return NULL;
}

// Requests.

static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;
static TRITONSERVER_MemoryType placed;
static int64_t placed_id;

static TRITONSERVER_InferenceRequest* request_of(const char* model, TRITONSERVER_DataType data_type, int64_t elements, const void* base,
                                                 size_t bytes, struct Grants* grants, struct Wait* wait, const void* handle) {
  TRITONSERVER_InferenceRequest* request = NULL;
  OK(TS(InferenceRequestNew)(&request, server, model, -1));
  OK(TS(InferenceRequestAddInput)(request, "INPUT0", data_type, &elements, 1));
  if (handle == NULL) {
    OK(TS(InferenceRequestAppendInputData)(request, "INPUT0", base, bytes, placed, placed_id));
  } else {
    TRITONSERVER_BufferAttributes* attributes = NULL;
    OK(TS(BufferAttributesNew)(&attributes));
    OK(TS(BufferAttributesSetMemoryType)(attributes, placed));
    OK(TS(BufferAttributesSetMemoryTypeId)(attributes, placed_id));
    OK(TS(BufferAttributesSetByteSize)(attributes, bytes));
    OK(TS(BufferAttributesSetCudaIpcHandle)(attributes, (void*)handle));
    OK(TS(InferenceRequestAppendInputDataWithBufferAttributes)(request, "INPUT0", base, attributes));
    OK(TS(BufferAttributesDelete)(attributes));
  }
  sem_init(&wait->answered, 0, 0);
  sem_init(&wait->released, 0, 0);
  OK(TS(InferenceRequestSetReleaseCallback)(request, on_release, wait));
  OK(TS(InferenceRequestSetResponseCallback)(request, allocator, grants, on_response, wait));
  return request;
}

// One inference of bytes that have to come back. `input` and `output` are what the backend is to see, -1 if it does not tell.
static void repeat(const char* model, TRITONSERVER_DataType data_type, int64_t elements, const void* expected, size_t bytes, const void* base,
                   int granted, int input, int output, int asked, const char* handle) {
  struct Grants grants = {.kind = granted};
  struct Wait wait;
  TRITONSERVER_InferenceRequest* request = request_of(model, data_type, elements, base, bytes, &grants, &wait, handle);
  TRITONSERVER_InferenceResponse* response = run(server, request, &wait, NULL);
  OK(TS(InferenceResponseError)(response));
  struct Output answer = output_of(response, 0);
  EXPECT(answer.bytes == bytes && grants.allocs == 1 && answer.userp == &grants);
  EXPECT((int)answer.memory_type == (granted < 0 ? asked : granted) && (int)grants.asked == asked);
  char copy[BYTES];
  device_copy(copy, answer.base, bytes);
  EXPECT(memcmp(copy, expected, bytes) == 0);
  if (input >= 0) {
    EXPECT(*(const int64_t*)parameter(response, "input_memory") == input);
    EXPECT(*(const int64_t*)parameter(response, "output_memory") == output);
    const char* seen = parameter(response, "input_handle");
    EXPECT(strlen(seen) == (handle == NULL ? 0 : 2 * HANDLE_BYTES));
    EXPECT(handle == NULL || strncmp(seen, "2a2a2a", 6) == 0);
  }
  OK(TS(InferenceResponseDelete)(response));
  EXPECT(grants.releases == 1);
  OK(TS(InferenceRequestDelete)(request));
}

static void refused(const char* model, TRITONSERVER_DataType data_type, int64_t elements, const void* base, size_t bytes, const char* message) {
  struct Grants grants = {.kind = -1};
  struct Wait wait;
  TRITONSERVER_InferenceRequest* request = request_of(model, data_type, elements, base, bytes, &grants, &wait, NULL);
  REFUSED(TS(ServerInferAsync)(server, request, NULL), TRITONSERVER_ERROR_INVALID_ARG, message);
  OK(TS(InferenceRequestDelete)(request));
}

static void with_gpu(void) {
  enum { CPU = TRITONSERVER_MEMORY_CPU, PINNED = TRITONSERVER_MEMORY_CPU_PINNED, GPU = TRITONSERVER_MEMORY_GPU, ASKED = -1, UNTOLD = -1 };
  const TRITONSERVER_DataType uint8 = TRITONSERVER_TYPE_UINT8;
  char host[BYTES], handle[HANDLE_BYTES];
  for (int index = 0; index < BYTES; index++) host[index] = (char)(index * 7);
  memset(handle, 42, sizeof handle);
  char* device = device_alloc(BYTES);
  device_copy(device, host, BYTES);

  const struct {
    const char* model;
    int placed, granted, input, output, asked;
    const char* handle;
  } cases[] = {
      {"gpu", GPU, ASKED, GPU, GPU, GPU, NULL},         // all in place
      {"gpu", GPU, ASKED, GPU, GPU, GPU, handle},       // with what the embedder says of it
      {"gpu", GPU, PINNED, GPU, PINNED, GPU, NULL},     // the allocator has its own mind
      {"gpu", GPU, CPU, GPU, CPU, GPU, NULL},
      {"gpu", PINNED, ASKED, PINNED, GPU, GPU, NULL},
      {"gpu", CPU, ASKED, CPU, GPU, GPU, NULL},
      {"cpu", GPU, ASKED, CPU, CPU, CPU, NULL},         // a backend that prefers the host gets a copy
      {"cpu", CPU, GPU, CPU, GPU, CPU, NULL},           // and sees that the output is on the GPU
      {"cpu", PINNED, PINNED, PINNED, PINNED, CPU, NULL},
      {"identity", GPU, CPU, UNTOLD, UNTOLD, CPU, NULL},
      {"ensemble", GPU, CPU, UNTOLD, UNTOLD, CPU, NULL},
      {"ensemble", GPU, GPU, UNTOLD, UNTOLD, CPU, NULL},  // the server moves it there
  };
  for (size_t index = 0; index < sizeof cases / sizeof cases[0]; index++) {
    placed = (TRITONSERVER_MemoryType)cases[index].placed;
    printf("case %zu: %s\n", index, cases[index].model);
    fflush(stdout);
    repeat(cases[index].model, uint8, BYTES, host, BYTES, placed == TRITONSERVER_MEMORY_GPU ? device : host, cases[index].granted,
           cases[index].input, cases[index].output, cases[index].asked, cases[index].handle);
  }

  // Strings are looked at before the model sees them.
  placed = TRITONSERVER_MEMORY_GPU;
  static const char good[] = "\2\0\0\0hi\0\0\0\0", bad[] = "\x7f\0\0\0hi\0\0\0\0";
  device_copy(device, good, 10);
  repeat("strings", TRITONSERVER_TYPE_BYTES, 2, good, 10, device, CPU, UNTOLD, UNTOLD, CPU, NULL);
  device_copy(device, bad, 10);
  refused("strings", TRITONSERVER_TYPE_BYTES, 2, device, 10, "[request id: <id_unknown>] incomplete string data for inference input 'INPUT0'");

  placed_id = 7;
  refused("gpu", uint8, BYTES, device, BYTES, "[request id: <id_unknown>] data of input 'INPUT0' lies in memory of GPU 7, which the server does not have");
  placed_id = 0;
  device_free(device);
}

int main(int argc, char** argv) {
  EXPECT(argc == 5);
  const bool is_present = strcmp(argv[4], "present") == 0;
  api_open(argv[1]);
  server = api_start("devices", argv[2], argv[3], TRITONSERVER_MODEL_CONTROL_NONE);
  OK(TS(ResponseAllocatorNew)(&allocator, grant, take_back, NULL));
  if (is_present) {
    open_driver();
    with_gpu();
  } else {
    char host[8] = {0};
    placed = TRITONSERVER_MEMORY_GPU;
    refused("identity", TRITONSERVER_TYPE_UINT8, 8, host, 8, "[request id: <id_unknown>] data of input 'INPUT0' lies in memory of GPU 0, which the server does not have");
    refused("strings", TRITONSERVER_TYPE_BYTES, 2, host, 8, "[request id: <id_unknown>] data of input 'INPUT0' lies in memory of GPU 0, which the server does not have");
  }
  OK(TS(ResponseAllocatorDelete)(allocator));
  OK(TS(ServerStop)(server));
  OK(TS(ServerDelete)(server));
  puts("ok");
  return 0;
}
