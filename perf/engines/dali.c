/* DALI by itself: dali LIBRARY PIPELINE ROWS. The pipeline takes "IMAGE", UINT8 [48,64,3], and makes one output, FP32 [3,24,32]. Where a
 * sample lies is DALI's memory, so a call copies it there, as anyone has to who feeds a pipeline. */

#include "loop.h"

#define HEIGHT 48
#define WIDTH 64
#define SAMPLE (HEIGHT * WIDTH * 3)
#define ANSWER (3 * 24 * 32 * 4)

typedef struct {
  int type, id;
  unsigned char is_pinned;
} Place;
typedef struct {
  int dim_count;
  const int64_t* shape;
  int type;
  const char* layout;
  void* data;
} Tensor;
/* daliPipelineParams_t, with the bits that say what is set. */
typedef struct {
  uint64_t present;
  int max_batch_size, thread_count, device;
  int64_t seed;
  int exec_type, exec_flags, prefetch_cpu, prefetch_gpu;
  unsigned char checkpointing, memory_stats;
  size_t bytes_per_sample;
} Params;
enum { MAX_BATCH_SIZE = 1, THREAD_COUNT = 2, EXEC_TYPE = 16, PREFETCH = 64, NO_COPY = 4 };

static void* pipeline;
static const char* rows;
static const char* (*last_error)(void);
static int (*create_list)(void**, Place);
static int (*resize_list)(void*, int, int, const int64_t*, int, const char*);
static int (*sample_of)(void*, Tensor*, int);
static int (*release_list)(void*, int*);
static int (*feed)(void*, const char*, void*, const char*, int, const void*);
static int (*run)(void*);
static int (*pop)(void*, void**);
static int (*list_of)(void*, void**, int);
static int (*destroy_outputs)(void*);

static void check(int status) {
  if (status < 0) fail("DALI", last_error());
}

static void call(size_t first, size_t count, char* answers) {
  static const int64_t shape[] = {HEIGHT, WIDTH, 3};
  const Place host = {0, 0, 0};
  for (size_t row = 0; row < count; row++) {
    void *list, *outputs;
    Tensor tensor;
    check(create_list(&list, host));
    check(resize_list(list, 1, 3, shape, 0, "HWC"));
    check(sample_of(list, &tensor, 0));
    memcpy(tensor.data, rows + (first + row) * SAMPLE, SAMPLE);
    check(feed(pipeline, "IMAGE", list, "", NO_COPY, NULL));
    check(release_list(list, NULL));
    check(run(pipeline));
    check(pop(pipeline, &outputs));
    check(list_of(outputs, &list, 0));
    check(sample_of(list, &tensor, 0));
    memcpy(answers + row * ANSWER, tensor.data, ANSWER);
    check(release_list(list, NULL));
    check(destroy_outputs(outputs));
  }
}

int main(int argc, char** argv) {
  /* As the backend runs pipelines on CPUs: nothing runs ahead, and operators on the thread that calls. */
  Params params = {MAX_BATCH_SIZE | THREAD_COUNT | EXEC_TYPE | PREFETCH, 16, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0};
  size_t size;
  char path[4096];
  if (argc != 4) fail(argv[0], "LIBRARY PIPELINE ROWS");
  snprintf(path, sizeof path, "%.*s/libdali_operators.so", (int)(strrchr(argv[1], '/') - argv[1]), argv[1]);
  void* library = library_at(argv[1]);
  library_at(path);
#define FUNCTION(result, name, ...) ((result(*)(__VA_ARGS__))symbol_of(library, name))
  last_error = FUNCTION(const char*, "daliGetLastErrorMessage", void);
  create_list = FUNCTION(int, "daliTensorListCreate", void**, Place);
  resize_list = FUNCTION(int, "daliTensorListResize", void*, int, int, const int64_t*, int, const char*);
  sample_of = FUNCTION(int, "daliTensorListGetTensorDesc", void*, Tensor*, int);
  release_list = FUNCTION(int, "daliTensorListDecRef", void*, int*);
  feed = FUNCTION(int, "daliPipelineFeedInput", void*, const char*, void*, const char*, int, const void*);
  run = FUNCTION(int, "daliPipelineRun", void*);
  pop = FUNCTION(int, "daliPipelinePopOutputs", void*, void**);
  list_of = FUNCTION(int, "daliPipelineOutputsGet", void*, void**, int);
  destroy_outputs = FUNCTION(int, "daliPipelineOutputsDestroy", void*);
  check(FUNCTION(int, "daliInit", void)());
  char* serialized = content_of(argv[2], &size);
  check(FUNCTION(int, "daliPipelineDeserialize", void**, const void*, size_t, const Params*)(&pipeline, serialized, size, &params));
  check(FUNCTION(int, "daliPipelineBuild", void*)(pipeline));
  rows = content_of(argv[3], &size);
  return attend(call, size / SAMPLE, ANSWER);
}
