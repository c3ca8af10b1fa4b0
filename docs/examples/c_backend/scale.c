/* A complete backend in C: output OUT is input IN (FP32, any shape) times the number that stands in
 * the file `factor.txt` of the model's version directory. docs/BACKENDS.md tells about it.
 *
 * It is also C++, so that both compilers can check it. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

/* The oldest server that has all functions used here. */
#define NEEDED_API_VERSION_MINOR 10

/* Returns an error that the server made; the caller of this function then owns it. */
#define RETURN_IF_ERROR(call)                     \
  do {                                            \
    struct TRITONSERVER_Error* error_ = (call);   \
    if (error_ != NULL) return error_;            \
  } while (0)

/* Notes an error that nobody is left to tell, and deletes it. */
#define LOG_IF_ERROR(call)                                                              \
  do {                                                                                  \
    struct TRITONSERVER_Error* error_ = (call);                                         \
    if (error_ != NULL) {                                                               \
      TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(                                 \
          TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error_))); \
      TRITONSERVER_ErrorDelete(error_);                                                 \
    }                                                                                   \
  } while (0)

/* What belongs to a model version, and is shared by its instances. */
typedef struct {
  float factor;
  int has_batch_dim;
} Model;

/* What belongs to an instance: no other thread uses it. */
typedef struct {
  const Model* model;
  const char* name;
  unsigned long element_count;
} Instance;

static uint64_t NowNs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct TRITONSERVER_Error* Invalid(const char* message) {
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message);
}

/* Reads `<repository>/<version>/factor.txt`. */
static struct TRITONSERVER_Error* ReadFactor(struct TRITONBACKEND_Model* handle, float* factor) {
  TRITONBACKEND_ArtifactType type;
  const char* directory;
  uint64_t version;
  char path[4096];
  FILE* file;
  int found;
  RETURN_IF_ERROR(TRITONBACKEND_ModelRepository(handle, &type, &directory));
  RETURN_IF_ERROR(TRITONBACKEND_ModelVersion(handle, &version));
  if (snprintf(path, sizeof path, "%s/%lu/factor.txt", directory, (unsigned long)version) >= (int)sizeof path) {
    return Invalid("the path of the model is too long");
  }
  file = fopen(path, "r");
  if (file == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "the model has no factor.txt");
  found = fscanf(file, "%f", factor);
  fclose(file);
  return found == 1 ? NULL : Invalid("factor.txt holds no number");
}

/* Whether the model batches. Looking for text is enough for one number of a document that the server wrote; read more than that
 * with a JSON library. */
static struct TRITONSERVER_Error* ReadConfig(struct TRITONBACKEND_Model* handle, int* has_batch_dim) {
  struct TRITONSERVER_Message* message;
  struct TRITONSERVER_Error* error;
  const char* json;
  size_t byte_size;
  RETURN_IF_ERROR(TRITONBACKEND_ModelConfig(handle, 1, &message));
  error = TRITONSERVER_MessageSerializeToJson(message, &json, &byte_size);
  if (error == NULL) {
    static const char key[] = "\"max_batch_size\":";
    const size_t length = sizeof key - 1;
    size_t at;
    *has_batch_dim = 0;
    for (at = 0; at + length < byte_size; ++at) {
      if (memcmp(json + at, key, length) == 0) *has_batch_dim = json[at + length] != '0';
    }
  }
  LOG_IF_ERROR(TRITONSERVER_MessageDelete(message));
  return error;
}

/* Fills a response to one request. `batch_size` is how many elements of a batch the request is. */
static struct TRITONSERVER_Error* Scale(
    const Instance* instance, struct TRITONBACKEND_Request* request, struct TRITONBACKEND_Response* response,
    uint64_t* batch_size, uint64_t* element_count) {
  struct TRITONBACKEND_Input* input;
  struct TRITONBACKEND_Output* output;
  TRITONSERVER_DataType type;
  const int64_t* shape;
  uint32_t dims_count, buffer_count, index;
  uint64_t byte_size, done = 0;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  void* target;
  float* values;

  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, "IN", &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, &type, &shape, &dims_count, &byte_size, &buffer_count));
  if (type != TRITONSERVER_TYPE_FP32) return Invalid("input IN must be of type FP32");
  if (instance->model->has_batch_dim && dims_count > 0) *batch_size = (uint64_t)shape[0];

  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUT", type, shape, dims_count));
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &target, byte_size, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "the output lies on a GPU");
  }

  /* The bytes may come in pieces that end inside of an element, so they are joined before they are
   * read as numbers. */
  for (index = 0; index < buffer_count; ++index) {
    const void* piece;
    uint64_t piece_bytes;
    memory = TRITONSERVER_MEMORY_CPU;
    memory_id = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, index, &piece, &piece_bytes, &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU) {
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "the input lies on a GPU");
    }
    if (piece_bytes > byte_size - done) return Invalid("input IN has more bytes than it says");
    if (piece_bytes > 0) memcpy((char*)target + done, piece, piece_bytes);
    done += piece_bytes;
  }
  values = (float*)target;
  *element_count = done / sizeof *values;
  for (done = 0; done < *element_count; ++done) values[done] *= instance->model->factor;
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_Initialize(struct TRITONBACKEND_Backend* backend) {
  uint32_t major, minor;
  (void)backend;
  RETURN_IF_ERROR(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < NEEDED_API_VERSION_MINOR) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "the server's backend API does not fit the backend 'scale'");
  }
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(struct TRITONBACKEND_Model* handle) {
  struct TRITONSERVER_Error* error;
  Model* model = (Model*)calloc(1, sizeof *model);
  if (model == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory");
  error = ReadFactor(handle, &model->factor);
  if (error == NULL) error = ReadConfig(handle, &model->has_batch_dim);
  if (error == NULL) error = TRITONBACKEND_ModelSetState(handle, model);
  if (error != NULL) free(model);
  return error;
}

/* Called after a failed ModelInitialize as well, when there is no state. */
struct TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(struct TRITONBACKEND_Model* handle) {
  void* state;
  RETURN_IF_ERROR(TRITONBACKEND_ModelState(handle, &state));
  free(state);
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(struct TRITONBACKEND_ModelInstance* handle) {
  struct TRITONSERVER_Error* error;
  struct TRITONBACKEND_Model* model;
  void* state = NULL;
  Instance* instance = (Instance*)calloc(1, sizeof *instance);
  if (instance == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory");
  error = TRITONBACKEND_ModelInstanceModel(handle, &model);
  if (error == NULL) error = TRITONBACKEND_ModelState(model, &state);
  if (error == NULL) error = TRITONBACKEND_ModelInstanceName(handle, &instance->name);
  instance->model = (const Model*)state;
  if (error == NULL) error = TRITONBACKEND_ModelInstanceSetState(handle, instance);
  if (error != NULL) free(instance);
  return error;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(struct TRITONBACKEND_ModelInstance* handle) {
  void* state;
  char line[256];
  const Instance* instance;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(handle, &state));
  instance = (const Instance*)state;
  if (instance != NULL) {
    snprintf(line, sizeof line, "instance %.200s scaled %lu numbers", instance->name, instance->element_count);
    LOG_IF_ERROR(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, line));
  }
  free(state);
  return NULL;
}

struct TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    struct TRITONBACKEND_ModelInstance* handle, struct TRITONBACKEND_Request** requests, const uint32_t request_count) {
  const uint64_t exec_start_ns = NowNs();
  uint64_t batch_size = 0;
  uint32_t index;
  void* state;
  Instance* instance;
  /* Until here an error leaves all requests to the server. From here on they are this backend's: each is answered and released
   * by itself, whatever happens to the others. */
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(handle, &state));
  instance = (Instance*)state;

  for (index = 0; index < request_count; ++index) {
    struct TRITONBACKEND_Request* request = requests[index];
    struct TRITONBACKEND_Response* response = NULL;
    struct TRITONSERVER_Error* error = TRITONBACKEND_ResponseNew(&response, request);
    const uint64_t compute_start_ns = NowNs();
    uint64_t request_batch_size = 1, element_count = 0, compute_end_ns;
    int is_success;

    if (error == NULL) error = Scale(instance, request, response, &request_batch_size, &element_count);
    is_success = error == NULL;
    batch_size += request_batch_size;
    instance->element_count += element_count;
    compute_end_ns = NowNs();

    /* The response, or the error in its place; sending consumes the response, never the error. */
    if (response != NULL) LOG_IF_ERROR(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    LOG_IF_ERROR(TRITONBACKEND_ModelInstanceReportStatistics(
        handle, request, is_success, exec_start_ns, compute_start_ns, compute_end_ns, NowNs()));
    LOG_IF_ERROR(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  LOG_IF_ERROR(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      handle, batch_size, exec_start_ns, exec_start_ns, NowNs(), NowNs()));
  return NULL;
}
