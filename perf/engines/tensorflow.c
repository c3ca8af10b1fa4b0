/* TensorFlow by itself: tensorflow LIBRARY GRAPH ROWS. The graph has a placeholder "x", FP32 [n,64], and an operation "y", FP32 [n,10]. */

#include "loop.h"

#define FEATURES 64
#define CLASSES 10
#define FLOAT 1

typedef struct {
  const void* data;
  size_t length;
  void (*deallocator)(void*, size_t);
} Buffer;
typedef struct {
  void* operation;
  int index;
} Output;

static void *session, *status;
static void* inputs[4096];
static Output source, target;
static void (*run)(void*, const Buffer*, const Output*, void* const*, int, const Output*, void**, int, const void* const*, int, Buffer*, void*);
static void* (*data_of)(const void*);
static void (*delete_tensor)(void*);
static int (*code)(const void*);
static const char* (*message)(const void*);

static void check(void) {
  if (code(status) != 0) fail("TensorFlow", message(status));
}

static void keep(void* data, size_t length, void* argument) { (void)data, (void)length, (void)argument; }

static void call(size_t first, size_t count, char* answers) {
  for (size_t row = 0; row < count; row++) {
    void* made = NULL;
    run(session, NULL, &source, &inputs[first + row], 1, &target, &made, 1, NULL, 0, NULL, status);
    check();
    memcpy(answers + row * CLASSES * 4, data_of(made), CLASSES * 4);
    delete_tensor(made);
  }
}

int main(int argc, char** argv) {
  /* ConfigProto { intra_op_parallelism_threads: 1 inter_op_parallelism_threads: -1 experimental { disable_thread_spinning: true } }: as the
   * backend has it where there is one CPU. The thread that calls runs the operations. */
  static const unsigned char config[] = {0x10, 1, 0x28, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0x82, 1, 2, 0x48, 1};
  const int64_t shape[] = {1, FEATURES};
  size_t size, row_count;
  Buffer definition = {NULL, 0, NULL};
  if (argc != 4) fail(argv[0], "LIBRARY GRAPH ROWS");
  void* library = library_at(argv[1]);
#define FUNCTION(result, name, ...) ((result(*)(__VA_ARGS__))symbol_of(library, name))
  run = (void (*)(void*, const Buffer*, const Output*, void* const*, int, const Output*, void**, int, const void* const*, int, Buffer*, void*))
      symbol_of(library, "TF_SessionRun");
  data_of = FUNCTION(void*, "TF_TensorData", const void*);
  delete_tensor = FUNCTION(void, "TF_DeleteTensor", void*);
  code = FUNCTION(int, "TF_GetCode", const void*);
  message = FUNCTION(const char*, "TF_Message", const void*);
  status = FUNCTION(void*, "TF_NewStatus", void)();
  void* graph = FUNCTION(void*, "TF_NewGraph", void)();
  void* import = FUNCTION(void*, "TF_NewImportGraphDefOptions", void)();
  void* options = FUNCTION(void*, "TF_NewSessionOptions", void)();
  definition.data = content_of(argv[2], &definition.length);
  FUNCTION(void, "TF_GraphImportGraphDef", void*, const Buffer*, const void*, void*)(graph, &definition, import, status);
  check();
  FUNCTION(void, "TF_SetConfig", void*, const void*, size_t, void*)(options, config, sizeof config, status);
  check();
  session = FUNCTION(void*, "TF_NewSession", void*, const void*, void*)(graph, options, status);
  check();
  source.operation = FUNCTION(void*, "TF_GraphOperationByName", void*, const char*)(graph, "x");
  target.operation = FUNCTION(void*, "TF_GraphOperationByName", void*, const char*)(graph, "y");
  if (source.operation == NULL || target.operation == NULL) fail(argv[2], "has no x and y");
  char* rows = content_of(argv[3], &size);
  row_count = size / (FEATURES * 4);
  if (row_count > sizeof inputs / sizeof *inputs) fail(argv[3], "too many rows");
  for (size_t row = 0; row < row_count; row++)
    inputs[row] = FUNCTION(void*, "TF_NewTensor", int, const int64_t*, int, void*, size_t, void (*)(void*, size_t, void*), void*)(
        FLOAT, shape, 2, rows + row * FEATURES * 4, FEATURES * 4, keep, NULL);
  return attend(call, row_count, CLASSES * 4);
}
