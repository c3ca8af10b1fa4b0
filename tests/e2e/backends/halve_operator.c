/* An operator for ONNX Runtime, Halve of the domain `tests`, in a library as models name it in op_library_filename. Functions of ONNX
 * Runtime and those that it calls are found by their place in its tables, which is the same in all its versions. */
#include <stddef.h>
#include <stdint.h>

enum {
  CREATE_DOMAIN = 26, ADD_TO_DOMAIN = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51, DIM_COUNT = 61, DIMS = 62, ELEMENT_COUNT = 64,
  TENSOR_SHAPE = 65, KERNEL_INPUT = 90, KERNEL_OUTPUT = 91, RELEASE_SHAPE = 99
};
enum { FLOAT = 1, DIMS_MAX = 8, OPERATOR_VERSION = 8, API_VERSION = 17 };

typedef void (*Function)(void);
typedef void *Status;

struct ApiBase {
  const Function *(*get_api)(uint32_t version);
  const char *(*get_version)(void);
};

struct Operator {
  uint32_t version;
  void *(*create)(const struct Operator *, const Function *, const void *);
  const char *(*name)(const struct Operator *);
  const char *(*provider)(const struct Operator *);
  int (*input_type)(const struct Operator *, size_t);
  size_t (*input_count)(const struct Operator *);
  int (*output_type)(const struct Operator *, size_t);
  size_t (*output_count)(const struct Operator *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_characteristic)(const struct Operator *, size_t);
  int (*output_characteristic)(const struct Operator *, size_t);
  Function newer[16];
};

static const Function *api;

static void *create(const struct Operator *self, const Function *table, const void *info) {
  (void)table, (void)info;
  return (void *)self;
}
static const char *name(const struct Operator *self) { (void)self; return "Halve"; }
static const char *provider(const struct Operator *self) { (void)self; return NULL; }
static int type(const struct Operator *self, size_t index) { (void)self, (void)index; return FLOAT; }
static int required(const struct Operator *self, size_t index) { (void)self, (void)index; return 0; }
static size_t count(const struct Operator *self) { (void)self; return 1; }
static void destroy(void *kernel) { (void)kernel; }

static void compute(void *kernel, void *context) {
  const void *input = NULL;
  void *output = NULL, *shape = NULL, *source = NULL, *target = NULL;
  int64_t dims[DIMS_MAX];
  size_t dim_count = 0, element_count = 0;
  (void)kernel;
  ((Status(*)(void *, size_t, const void **))api[KERNEL_INPUT])(context, 0, &input);
  ((Status(*)(const void *, void **))api[TENSOR_SHAPE])(input, &shape);
  ((Status(*)(void *, size_t *))api[DIM_COUNT])(shape, &dim_count);
  ((Status(*)(void *, size_t *))api[ELEMENT_COUNT])(shape, &element_count);
  if (dim_count > DIMS_MAX) dim_count = DIMS_MAX;
  ((Status(*)(void *, int64_t *, size_t))api[DIMS])(shape, dims, dim_count);
  ((void (*)(void *))api[RELEASE_SHAPE])(shape);
  ((Status(*)(void *, size_t, const int64_t *, size_t, void **))api[KERNEL_OUTPUT])(context, 0, dims, dim_count, &output);
  ((Status(*)(const void *, void **))api[TENSOR_DATA])(input, &source);
  ((Status(*)(void *, void **))api[TENSOR_DATA])(output, &target);
  for (size_t index = 0; index < element_count; index++) ((float *)target)[index] = ((float *)source)[index] / 2;
}

Status RegisterCustomOps(void *options, const struct ApiBase *base) {
  static const struct Operator halve = {OPERATOR_VERSION, create, name, provider, type, count, type, count, compute, destroy,
                                        required, required, {NULL}};
  /* One for all sessions, which use it as long as they are there. */
  static void *domain;
  Status failure = NULL;
  api = base->get_api(API_VERSION);
  if (domain == NULL) {
    failure = ((Status(*)(const char *, void **))api[CREATE_DOMAIN])("tests", &domain);
    if (failure == NULL) failure = ((Status(*)(void *, const struct Operator *))api[ADD_TO_DOMAIN])(domain, &halve);
  }
  return failure != NULL ? failure : ((Status(*)(void *, void *))api[ADD_DOMAIN])(options, domain);
}
