/* OpenVINO by itself: openvino LIBRARY MODEL ROWS. The model takes one input, FP32 [n,64], and makes one output, FP32 [n,10]. */

#include "loop.h"

#define FEATURES 64
#define CLASSES 10
#define FLOAT 4

typedef struct {
  int64_t rank;
  int64_t* dims;
} Shape;

static void* request;
static void* inputs[4096];
static int (*set_input)(void*, size_t, const void*);
static int (*infer)(void*);
static int (*output_of)(const void*, size_t, void**);
static int (*data_of)(const void*, void**);
static void (*free_tensor)(void*);
static const char* (*info)(int);

static void check(int status) {
  if (status != 0) fail("OpenVINO", info(status));
}

static void call(size_t first, size_t count, char* answers) {
  for (size_t row = 0; row < count; row++) {
    void *tensor, *data;
    check(set_input(request, 0, inputs[first + row]));
    check(infer(request));
    check(output_of(request, 0, &tensor));
    check(data_of(tensor, &data));
    memcpy(answers + row * CLASSES * 4, data, CLASSES * 4);
    free_tensor(tensor);
  }
}

int main(int argc, char** argv) {
  void *core, *model, *compiled;
  int64_t dims[] = {1, FEATURES};
  Shape shape = {2, dims};
  size_t size, row_count;
  if (argc != 4) fail(argv[0], "LIBRARY MODEL ROWS");
  void* library = library_at(argv[1]);
#define FUNCTION(result, name, ...) ((result(*)(__VA_ARGS__))symbol_of(library, name))
  set_input = FUNCTION(int, "ov_infer_request_set_input_tensor_by_index", void*, size_t, const void*);
  infer = FUNCTION(int, "ov_infer_request_infer", void*);
  output_of = FUNCTION(int, "ov_infer_request_get_output_tensor_by_index", const void*, size_t, void**);
  data_of = FUNCTION(int, "ov_tensor_data", const void*, void**);
  free_tensor = FUNCTION(void, "ov_tensor_free", void*);
  info = FUNCTION(const char*, "ov_get_error_info", int);
  check(FUNCTION(int, "ov_core_create", void**)(&core));
  check(FUNCTION(int, "ov_core_read_model", const void*, const char*, const char*, void**)(core, argv[2], NULL, &model));
  check(((int (*)(const void*, const void*, const char*, size_t, void**, ...))symbol_of(library, "ov_core_compile_model"))(
      core, model, "CPU", 4, &compiled, "INFERENCE_NUM_THREADS", "1", "NUM_STREAMS", "1"));
  check(FUNCTION(int, "ov_compiled_model_create_infer_request", const void*, void**)(compiled, &request));
  char* rows = content_of(argv[3], &size);
  row_count = size / (FEATURES * 4);
  if (row_count > sizeof inputs / sizeof *inputs) fail(argv[3], "too many rows");
  for (size_t row = 0; row < row_count; row++)
    check(FUNCTION(int, "ov_tensor_create_from_host_ptr", int, Shape, void*, void**)(FLOAT, shape, rows + row * FEATURES * 4, &inputs[row]));
  return attend(call, row_count, CLASSES * 4);
}
