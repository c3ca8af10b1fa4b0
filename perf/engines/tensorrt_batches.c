/* TensorRT by itself, in batches: tensorrt_batches LIBRARY SHIM PLAN DEVICE ROWS INPUT OUTPUT DIMS COUNT
 *
 * TensorRT's interface is C++ classes, so it is called by way of the tensorrt backend's shim (libconch_tensorrt_*.so), which adds nothing to
 * them. Rows are of 4-byte values, DIMS those of a row, such as 3x224x224, and the answer to a row is COUNT values of FP32. Each lane has an
 * engine, a context with the first profile, and a stream of its own. Tensors in main memory are pinned. */

#include "batches.h"
#include "cuda_driver.h"
#include "shim.h"

typedef struct {
  void* stream;
  conch_tensorrt_context* context;
  char *inputs[2], *answers[2]; /* by the memory */
  size_t rows;                  /* that the context's shape has */
} Lane;

static Lane lanes[LANES];
static void* shim;
static conch_tensorrt_runtime* runtime;
static const char *input, *output;
static char *plan, *rows_given;
static size_t plan_bytes, input_bytes = 4, answer_bytes, row_count;
static conch_tensorrt_shape shape;

#define SHIM(name) ((__typeof__(name)*)symbol_of(shim, #name))

static void log_line(void* owner, int32_t severity, const char* text) {
  (void)owner;
  /* 1: an error, 0: an internal one. */
  if (severity <= 1) fprintf(stderr, "%s\n", text);
}

static void check(const char* what, char* text) {
  if (text != NULL) fail(what, text);
}

static void open_lane(Lane* lane) {
  conch_tensorrt_engine* engine = SHIM(conch_tensorrt_engine_new)(runtime, plan, plan_bytes);
  if (engine == NULL) fail("the plan", "is none of this TensorRT and GPU");
  lane->stream = new_stream();
  lane->context = SHIM(conch_tensorrt_context_new)(engine, 0);
  if (lane->context == NULL || !SHIM(conch_tensorrt_set_profile)(lane->context, 0, lane->stream)) fail("the plan", "has no context");
  lane->inputs[HOST] = (char*)pinned_memory(row_count * input_bytes);
  lane->answers[HOST] = (char*)pinned_memory(row_count * answer_bytes);
  lane->inputs[DEVICE] = (char*)device_memory(row_count * input_bytes);
  lane->answers[DEVICE] = (char*)device_memory(row_count * answer_bytes);
  memcpy(lane->inputs[HOST], rows_given, row_count * input_bytes);
  to_device(lane->inputs[DEVICE], lane->inputs[HOST], row_count * input_bytes, lane->stream);
  if (!SHIM(conch_tensorrt_set_address)(lane->context, input, lane->inputs[DEVICE]) ||
      !SHIM(conch_tensorrt_set_address)(lane->context, output, lane->answers[DEVICE]))
    fail("the plan", "has no tensors of these names");
}

/* The first call of a lane is never made by two threads at once. */
static void call(size_t number, Memory memory, size_t rows) {
  Lane* lane = &lanes[number];
  static __typeof__(conch_tensorrt_enqueue)* enqueue;
  if (enqueue == NULL) enqueue = SHIM(conch_tensorrt_enqueue);
  if (lane->context == NULL) open_lane(lane);
  use_device();
  if (lane->rows != rows) {
    conch_tensorrt_shape wanted = shape;
    wanted.dims[0] = (int64_t)rows;
    if (!SHIM(conch_tensorrt_set_shape)(lane->context, input, &wanted)) fail("the plan", "does not take so many rows");
    lane->rows = rows;
  }
  if (memory == HOST) enqueue_to_device(lane->inputs[DEVICE], lane->inputs[HOST], rows * input_bytes, lane->stream);
  if (!enqueue(lane->context, lane->stream)) fail("TensorRT", "does not enqueue");
  if (memory == HOST) enqueue_to_host(lane->answers[HOST], lane->answers[DEVICE], rows * answer_bytes, lane->stream);
  wait_for(lane->stream);
}

static const char* answers(size_t number, Memory memory, size_t rows) {
  Lane* lane = &lanes[number];
  if (memory == DEVICE) to_host(lane->answers[HOST], lane->answers[DEVICE], rows * answer_bytes, lane->stream);
  return lane->answers[HOST];
}

int main(int argc, char** argv) {
  conch_tensorrt_library* library;
  size_t size;
  if (argc != 10) fail(argv[0], "LIBRARY SHIM PLAN DEVICE ROWS INPUT OUTPUT DIMS COUNT");
  input = argv[6];
  output = argv[7];
  shape.count = 1;
  for (char* dim = strtok(argv[8], "x"); dim != NULL && shape.count < CONCH_TENSORRT_DIMS_MAX; dim = strtok(NULL, "x")) {
    shape.dims[shape.count++] = atoll(dim);
    input_bytes *= (size_t)atoll(dim);
  }
  answer_bytes = 4 * (size_t)atoll(argv[9]);
  rows_given = content_of(argv[5], &size);
  row_count = size / input_bytes;
  if (row_count == 0 || answer_bytes == 0) fail(argv[5], "has no row");
  plan = content_of(argv[3], &plan_bytes);
  open_device(atoi(argv[4]));
  shim = library_at(argv[2]);
  check(argv[1], SHIM(conch_tensorrt_open)(argv[1], &library));
  check(argv[1], SHIM(conch_tensorrt_runtime_new)(library, log_line, NULL, &runtime));
  return attend_batches(call, answers, row_count, answer_bytes);
}
