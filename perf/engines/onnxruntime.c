/* ONNX Runtime by itself: onnxruntime LIBRARY MODEL ROWS. The model takes "x", FP32 [n,64], and makes "y", FP32 [n,10]. */

#include "onnxruntime_api.h"

#define FEATURES 64
#define CLASSES 10
#define FLOAT 1

static void* session;
static void* inputs[4096];

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
  open_onnxruntime(argv[1], 17);
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
