/* ONNX Runtime by itself: onnxruntime LIBRARY MODEL ROWS. The model takes "x", FP32 [n,64], and makes "y", FP32 [n,10]. */

#include "loop.h"

#define FEATURES 64
#define CLASSES 10
#define FLOAT 1

typedef void* Status;
typedef struct {
  const void* const* (*GetApi)(uint32_t version);
} ApiBase;

/* Functions by their index in OrtApi, which only ever grows at its end. */
static const void* const* api;
#define ORT(index, ...) ((Status(*)(__VA_ARGS__))api[index])
#define GET_ERROR_MESSAGE ((const char* (*)(Status))api[2])
#define CREATE_ENV ORT(3, int, const char*, void**)
#define CREATE_SESSION ORT(7, void*, const char*, void*, void**)
#define RUN ORT(9, void*, void*, const char* const*, void* const*, size_t, const char* const*, size_t, void**)
#define CREATE_SESSION_OPTIONS ORT(10, void**)
#define SET_INTRA_OP_THREADS ORT(24, void*, int)
#define CREATE_TENSOR_WITH_DATA ORT(49, void*, void*, size_t, const int64_t*, size_t, int, void**)
#define TENSOR_DATA ORT(51, void*, void**)
#define CREATE_CPU_MEMORY_INFO ORT(69, int, int, void**)
#define RELEASE_VALUE ((void (*)(void*))api[96])

static void* session;
static void* inputs[4096];

static void check(Status status) {
  if (status != NULL) fail("ONNX Runtime", GET_ERROR_MESSAGE(status));
}

static void call(size_t first, size_t count, char* answers) {
  static const char* const input = "x";
  static const char* const output = "y";
  for (size_t row = 0; row < count; row++) {
    void *value = NULL, *data;
    check(RUN(session, NULL, &input, &inputs[first + row], 1, &output, 1, &value));
    check(TENSOR_DATA(value, &data));
    memcpy(answers + row * CLASSES * 4, data, CLASSES * 4);
    RELEASE_VALUE(value);
  }
}

int main(int argc, char** argv) {
  void *environment, *options, *memory;
  size_t size, row_count;
  const int64_t shape[] = {1, FEATURES};
  if (argc != 4) fail(argv[0], "LIBRARY MODEL ROWS");
  api = ((const ApiBase* (*)(void))symbol_of(library_at(argv[1]), "OrtGetApiBase"))()->GetApi(17);
  check(CREATE_ENV(3, "loop", &environment));
  check(CREATE_SESSION_OPTIONS(&options));
  check(SET_INTRA_OP_THREADS(options, 1));
  check(CREATE_SESSION(environment, argv[2], options, &session));
  check(CREATE_CPU_MEMORY_INFO(1, 0, &memory));
  char* rows = content_of(argv[3], &size);
  row_count = size / (FEATURES * 4);
  if (row_count > sizeof inputs / sizeof *inputs) fail(argv[3], "too many rows");
  for (size_t row = 0; row < row_count; row++)
    check(CREATE_TENSOR_WITH_DATA(memory, rows + row * FEATURES * 4, FEATURES * 4, shape, 2, FLOAT, &inputs[row]));
  return attend(call, row_count, CLASSES * 4);
}
