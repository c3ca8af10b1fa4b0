/* ONNX Runtime by itself, in batches: onnxruntime_batches LIBRARY MODEL DEVICE THREADS ROWS INPUT OUTPUT TYPE DIMS COUNT [OPTION=VALUE...]
 *
 * DEVICE is the number of a GPU, for the execution provider CUDA with these options of its, or -1 for the CPU. TYPE is FP32 or INT32, DIMS
 * those of a row, such as 3x224x224, and the answer to a row is COUNT values of FP32. Each lane has a session and a stream of its own.
 * Tensors in main memory are pinned where there is a GPU. On the CPU, device memory is main memory. */

#include "batches.h"
#include "cuda_driver.h"
#include "onnxruntime_api.h"

#define FLOAT 1
#define INT32 6
#define OPTIONS 32
#define DIMS 8

typedef struct {
  void *stream, *session;
  char *inputs[2], *answers[2], *brought; /* by the memory; answers that were brought from the device */
} Lane;

/* What one number of rows is bound to; made when it is asked for. */
typedef struct {
  void *input, *output, *binding;
} Bound;

static Lane lanes[LANES];
static Bound* bound[LANES][2];
static void *environment, *memories[2];
static const char *model, *input, *output, *names[OPTIONS], *values[OPTIONS];
static char* rows_given;
static int device, threads, element;
static int64_t shape[DIMS];
static size_t dim_count = 1, input_bytes = 4, answer_bytes, row_count, option_count;

static void* new_session(void* stream) {
  void *options, *cuda, *session;
  check(CREATE_SESSION_OPTIONS(&options));
  check(SET_INTRA_OP_THREADS(options, threads));
  if (device >= 0) {
    check(CREATE_CUDA_OPTIONS(&cuda));
    check(UPDATE_CUDA_OPTIONS(cuda, names, values, option_count));
    check(SET_CUDA_POINTER(cuda, "user_compute_stream", stream));
    check(APPEND_CUDA(options, cuda));
    RELEASE_CUDA_OPTIONS(cuda);
  }
  check(CREATE_SESSION(environment, model, options, &session));
  return session;
}

static char* memory_for(Memory memory, size_t size) {
  if (device >= 0) return (char*)(memory == HOST ? pinned_memory(size) : device_memory(size));
  return (char*)aligned_alloc(64, (size + 63) / 64 * 64);
}

static void open_lane(Lane* lane) {
  lane->stream = device >= 0 ? new_stream() : NULL;
  lane->session = new_session(lane->stream);
  for (int memory = HOST; memory <= DEVICE; memory++) {
    lane->inputs[memory] = memory_for((Memory)memory, row_count * input_bytes);
    lane->answers[memory] = memory_for((Memory)memory, row_count * answer_bytes);
    if (lane->inputs[memory] == NULL || lane->answers[memory] == NULL) fail("tensors", "no memory");
  }
  lane->brought = memory_for(HOST, row_count * answer_bytes);
  memcpy(lane->inputs[HOST], rows_given, row_count * input_bytes);
  if (device >= 0)
    to_device(lane->inputs[DEVICE], lane->inputs[HOST], row_count * input_bytes, lane->stream);
  else
    memcpy(lane->inputs[DEVICE], rows_given, row_count * input_bytes);
}

static Bound* bound_to(size_t number, Memory memory, size_t rows) {
  Lane* lane = &lanes[number];
  int64_t answer_shape[] = {(int64_t)rows, (int64_t)(answer_bytes / 4)};
  if (lane->session == NULL) open_lane(lane);
  if (bound[number][memory] == NULL) bound[number][memory] = (Bound*)calloc(row_count + 1, sizeof(Bound));
  if (bound[number][memory] == NULL) fail("bindings", "no memory");
  Bound* found = &bound[number][memory][rows];
  if (found->input != NULL) return found;
  shape[0] = (int64_t)rows;
  check(CREATE_TENSOR_WITH_DATA(memories[memory], lane->inputs[memory], rows * input_bytes, shape, dim_count, element, &found->input));
  check(CREATE_TENSOR_WITH_DATA(memories[memory], lane->answers[memory], rows * answer_bytes, answer_shape, 2, FLOAT, &found->output));
  /* Not in main memory: what is bound there is brought to the device once, and a run that is given it brings it each time. */
  if (device >= 0 && memory == DEVICE) {
    check(CREATE_BINDING(lane->session, &found->binding));
    check(BIND_INPUT(found->binding, input, found->input));
    check(BIND_OUTPUT(found->binding, output, found->output));
  }
  return found;
}

/* A first call per lane, memory and number of rows makes what it needs, so those are not made by two threads at once. */
static void call(size_t lane, Memory memory, size_t rows) {
  Bound* to = bound_to(lane, memory, rows);
  void* session = lanes[lane].session;
  if (to->binding != NULL)
    check(RUN_WITH_BINDING(session, NULL, to->binding));
  else
    check(RUN(session, NULL, &input, &to->input, 1, &output, 1, &to->output));
}

static const char* answers(size_t lane, Memory memory, size_t rows) {
  if (device < 0 || memory == HOST) return lanes[lane].answers[memory];
  to_host(lanes[lane].brought, lanes[lane].answers[DEVICE], rows * answer_bytes, lanes[lane].stream);
  return lanes[lane].brought;
}

int main(int argc, char** argv) {
  size_t size;
  if (argc < 11) fail(argv[0], "LIBRARY MODEL DEVICE THREADS ROWS INPUT OUTPUT TYPE DIMS COUNT [OPTION=VALUE...]");
  model = argv[2];
  device = atoi(argv[3]);
  threads = atoi(argv[4]);
  input = argv[6];
  output = argv[7];
  element = strcmp(argv[8], "INT32") == 0 ? INT32 : FLOAT;
  for (char* dim = strtok(argv[9], "x"); dim != NULL && dim_count < DIMS; dim = strtok(NULL, "x")) {
    shape[dim_count++] = atoll(dim);
    input_bytes *= (size_t)atoll(dim);
  }
  answer_bytes = 4 * (size_t)atoll(argv[10]);
  rows_given = content_of(argv[5], &size);
  row_count = size / input_bytes;
  if (row_count == 0 || answer_bytes == 0) fail(argv[5], "has no row");
  names[option_count] = "device_id";
  values[option_count++] = argv[3];
  names[option_count] = "has_user_compute_stream";
  values[option_count++] = "1";
  for (int index = 11; index < argc && option_count < OPTIONS; index++) {
    char* equals = strchr(argv[index], '=');
    if (equals == NULL) fail(argv[index], "is no OPTION=VALUE");
    *equals = 0;
    names[option_count] = argv[index];
    values[option_count++] = equals + 1;
  }
  open_onnxruntime(argv[1], 17);
  check(CREATE_ENV(3, "batches", &environment));
  check(CREATE_CPU_MEMORY_INFO(1, 0, &memories[HOST]));
  memories[DEVICE] = memories[HOST];
  if (device >= 0) {
    open_device(device);
    /* As the backend describes it: an arena, the default memory. */
    check(CREATE_MEMORY_INFO("Cuda", 1, device, 0, &memories[DEVICE]));
  }
  return attend_batches(call, answers, row_count, answer_bytes);
}
