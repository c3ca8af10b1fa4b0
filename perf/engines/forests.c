/* Decision forests in the libraries that others use for them, by their C interfaces:
 *
 *   forests xgboost  LIBRARY MODEL ROWS FEATURES WIDTH THREADS    in place, without a DMatrix of the rows
 *   forests lightgbm LIBRARY MODEL ROWS FEATURES WIDTH THREADS    LGBM_BoosterPredictForMat; one row: ...SingleRowFast
 *   forests gtil     LIBRARY MODEL ROWS FEATURES WIDTH THREADS    Treelite's own interpreter, of a checkpoint
 *   forests compiled LIBRARY -     ROWS FEATURES WIDTH THREADS    C code of tl2cgen, compiled; several threads have a share each
 *
 * ROWS is a file of FP32; WIDTH answers per row come back as FP32. */

#include <pthread.h>

#include "loop.h"

#define FUNCTION(result, name, ...) ((result(*)(__VA_ARGS__))symbol_of(library, name))

static void* library;
static void* model;
static const float* rows;
static size_t feature_count, width;
static int thread_count;

static const float* row_at(size_t index) { return rows + index * feature_count; }

/* XGBoost */

static int (*xgboost_predict)(void*, const char*, const char*, void*, const uint64_t**, uint64_t*, const float**);
static const char* (*xgboost_error)(void);

static void xgboost_check(int status) {
  if (status != 0) fail("XGBoost", xgboost_error());
}

static void xgboost_call(size_t first, size_t count, char* answers) {
  static const char config[] =
      "{\"type\":0,\"training\":false,\"iteration_begin\":0,\"iteration_end\":0,\"strict_shape\":false,\"missing\":NaN,\"cache_id\":0}";
  char values[256];
  const uint64_t* shape;
  uint64_t rank;
  const float* made;
  snprintf(values, sizeof values, "{\"data\":[%zu,true],\"shape\":[%zu,%zu],\"typestr\":\"<f4\",\"version\":3}", (size_t)row_at(first), count,
           feature_count);
  xgboost_check(xgboost_predict(model, values, config, NULL, &shape, &rank, &made));
  memcpy(answers, made, count * width * 4);
}

static call_function open_xgboost(const char* path) {
  char threads[16];
  xgboost_error = FUNCTION(const char*, "XGBGetLastError", void);
  xgboost_predict = (int (*)(void*, const char*, const char*, void*, const uint64_t**, uint64_t*, const float**))
      symbol_of(library, "XGBoosterPredictFromDense");
  xgboost_check(FUNCTION(int, "XGBoosterCreate", const void*, uint64_t, void**)(NULL, 0, &model));
  xgboost_check(FUNCTION(int, "XGBoosterLoadModel", void*, const char*)(model, path));
  snprintf(threads, sizeof threads, "%d", thread_count);
  xgboost_check(FUNCTION(int, "XGBoosterSetParam", void*, const char*, const char*)(model, "nthread", threads));
  return xgboost_call;
}

/* LightGBM */

static int (*lightgbm_batch)(void*, const void*, int, int32_t, int32_t, int, int, int, int, const char*, int64_t*, double*);
static int (*lightgbm_row)(void*, const void*, int64_t*, double*);
static const char* (*lightgbm_error)(void);
static void* lightgbm_fast;
static char lightgbm_options[64];
static double* lightgbm_made;

static void lightgbm_check(int status) {
  if (status != 0) fail("LightGBM", lightgbm_error());
}

static void lightgbm_call(size_t first, size_t count, char* answers) {
  int64_t length;
  if (count == 1)
    lightgbm_check(lightgbm_row(lightgbm_fast, row_at(first), &length, lightgbm_made));
  else
    lightgbm_check(lightgbm_batch(model, row_at(first), 0, (int32_t)count, (int32_t)feature_count, 1, 0, 0, -1, lightgbm_options, &length,
                                  lightgbm_made));
  for (size_t index = 0; index < count * width; index++) ((float*)answers)[index] = (float)lightgbm_made[index];
}

static call_function open_lightgbm(const char* path, size_t row_count) {
  int turns;
  lightgbm_error = FUNCTION(const char*, "LGBM_GetLastError", void);
  lightgbm_batch = (int (*)(void*, const void*, int, int32_t, int32_t, int, int, int, int, const char*, int64_t*, double*))
      symbol_of(library, "LGBM_BoosterPredictForMat");
  lightgbm_row = FUNCTION(int, "LGBM_BoosterPredictForMatSingleRowFast", void*, const void*, int64_t*, double*);
  snprintf(lightgbm_options, sizeof lightgbm_options, "num_threads=%d", thread_count);
  lightgbm_made = (double*)malloc(row_count * width * sizeof *lightgbm_made);
  lightgbm_check(FUNCTION(int, "LGBM_BoosterCreateFromModelfile", const char*, int*, void**)(path, &turns, &model));
  lightgbm_check(FUNCTION(int, "LGBM_BoosterPredictForMatSingleRowFastInit", void*, int, int, int, int, int32_t, const char*, void**)(
      model, 0, 0, -1, 0, (int32_t)feature_count, lightgbm_options, &lightgbm_fast));
  return lightgbm_call;
}

/* Treelite's interpreter */

static int (*gtil_predict)(void*, const void*, const char*, uint64_t, void*, void*);
static const char* (*gtil_error)(void);
static void* gtil_config;

static void gtil_check(int status) {
  if (status != 0) fail("Treelite", gtil_error());
}

static void gtil_call(size_t first, size_t count, char* answers) {
  gtil_check(gtil_predict(model, row_at(first), "float32", count, answers, gtil_config));
}

static call_function open_gtil(const char* path) {
  char config[64];
  gtil_error = FUNCTION(const char*, "TreeliteGetLastError", void);
  gtil_predict = FUNCTION(int, "TreeliteGTILPredict", void*, const void*, const char*, uint64_t, void*, void*);
  snprintf(config, sizeof config, "{\"predict_type\":\"default\",\"nthread\":%d}", thread_count);
  gtil_check(FUNCTION(int, "TreeliteDeserializeModelFromFile", const char*, void**)(path, &model));
  gtil_check(FUNCTION(int, "TreeliteGTILParseConfig", const char*, void**)(config, &gtil_config));
  return gtil_call;
}

/* Code of tl2cgen: a function that takes a row as an array of unions, of which -1 in place of a number says that it is missing. */

typedef union {
  int missing;
  float value;
} Single;
typedef union {
  int missing;
  double value;
} Double;
static void (*compiled_predict)(void*, int, void*);
static int is_double;

typedef struct {
  size_t first, count;
  float* answers;
} Share;

static void* compiled_share(void* argument) {
  const Share* share = (const Share*)argument;
  Single single[feature_count];
  Double twice[feature_count];
  float single_made[width];
  double twice_made[width];
  for (size_t row = 0; row < share->count; row++) {
    const float* values = row_at(share->first + row);
    float* answers = share->answers + row * width;
    if (is_double) {
      for (size_t index = 0; index < feature_count; index++) {
        if (values[index] != values[index]) twice[index].missing = -1;
        else twice[index].value = values[index];
      }
      memset(twice_made, 0, sizeof twice_made);
      compiled_predict(twice, 0, twice_made);
      for (size_t index = 0; index < width; index++) answers[index] = (float)twice_made[index];
    } else {
      for (size_t index = 0; index < feature_count; index++) {
        if (values[index] != values[index]) single[index].missing = -1;
        else single[index].value = values[index];
      }
      memset(single_made, 0, sizeof single_made);
      compiled_predict(single, 0, single_made);
      memcpy(answers, single_made, sizeof single_made);
    }
  }
  return NULL;
}

static void compiled_call(size_t first, size_t count, char* answers) {
  Share own = {first, count, (float*)answers}, other = own;
  pthread_t thread;
  if (thread_count == 1 || count < 2) {
    compiled_share(&own);
    return;
  }
  own.count = count / 2;
  other.first += own.count;
  other.count -= own.count;
  other.answers += own.count * width;
  if (pthread_create(&thread, NULL, compiled_share, &other) != 0) fail("compiled", "no thread");
  compiled_share(&own);
  pthread_join(thread, NULL);
}

static call_function open_compiled(void) {
  compiled_predict = FUNCTION(void, "predict", void*, int, void*);
  is_double = strcmp(FUNCTION(const char*, "get_threshold_type", void)(), "float64") == 0;
  return compiled_call;
}

int main(int argc, char** argv) {
  size_t size, row_count;
  call_function call = NULL;
  if (argc != 8) fail(argv[0], "ENGINE LIBRARY MODEL ROWS FEATURES WIDTH THREADS");
  library = library_at(argv[2]);
  rows = (const float*)content_of(argv[4], &size);
  feature_count = (size_t)atoi(argv[5]);
  width = (size_t)atoi(argv[6]);
  thread_count = atoi(argv[7]);
  row_count = size / 4 / feature_count;
  if (strcmp(argv[1], "xgboost") == 0) call = open_xgboost(argv[3]);
  if (strcmp(argv[1], "lightgbm") == 0) call = open_lightgbm(argv[3], row_count);
  if (strcmp(argv[1], "gtil") == 0) call = open_gtil(argv[3]);
  if (strcmp(argv[1], "compiled") == 0) call = open_compiled();
  if (call == NULL) fail(argv[1], "is no engine");
  return attend(call, row_count, width * 4);
}
