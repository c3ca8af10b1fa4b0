/*
 * The C interface through which the tensorrt backend calls TensorRT, whose own is C++ classes. A library of it,
 * libconch_tensorrt_*.so, is compiled by scripts/build-tensorrt-shim for one major version of TensorRT, or of TensorRT for RTX.
 *
 * Functions that can fail return null, or a text that conch_tensorrt_free_text frees. What a message says beyond that came to the
 * `log` function of the runtime, on the same thread and before the return. Names of tensors are NUL-terminated; shapes have at most
 * CONCH_TENSORRT_DIMS_MAX dimensions. Engines end after their contexts, runtimes after their engines. A context is used by one thread
 * at a time; what belongs to a device needs that device to be current on the calling thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Changes with every change of this header. */
#define CONCH_TENSORRT_INTERFACE 1
#define CONCH_TENSORRT_DIMS_MAX 8

typedef struct conch_tensorrt_library conch_tensorrt_library;
typedef struct conch_tensorrt_runtime conch_tensorrt_runtime;
typedef struct conch_tensorrt_engine conch_tensorrt_engine;
typedef struct conch_tensorrt_context conch_tensorrt_context;

/* A message of TensorRT's: 0 internal error, 1 error, 2 warning, 3 information, 4 verbose. Any thread. */
typedef void (*conch_tensorrt_log)(void *owner, int32_t severity, const char *text);

typedef struct {
  int32_t count;
  int64_t dims[CONCH_TENSORRT_DIMS_MAX];
} conch_tensorrt_shape;

/* A tensor that an engine takes or makes. Texts live as long as the engine. */
typedef struct {
  const char *name;
  /* Numbers of nvinfer1::DataType and nvinfer1::TensorFormat. */
  int32_t data_type;
  int32_t format;
  const char *format_text;
  int32_t is_input;
  /* Its values decide about shapes. */
  int32_t is_shape;
  int32_t is_on_host;
  /* Of formats that are not linear: the dimension that is filled up to a multiple of `components`; -1 if there is none. */
  int32_t vectorized_dim;
  int32_t components;
  conch_tensorrt_shape shape;
} conch_tensorrt_tensor;

/* For outputs whose size is known only when they are made. */
typedef struct {
  void *owner;
  /* Device memory for an output; null fails the run. */
  void *(*allocate)(void *owner, const char *name, uint64_t size);
  void (*set_shape)(void *owner, const char *name, const conch_tensorrt_shape *shape);
} conch_tensorrt_outputs;

uint32_t conch_tensorrt_interface(void);
/* The version of the headers: `11.4`, or `RTX 1.7`. */
const char *conch_tensorrt_headers(void);
void conch_tensorrt_free_text(char *text);

/* Opens the library at a path, for good. Fails if it is of another major version than the headers. */
char *conch_tensorrt_open(const char *path, conch_tensorrt_library **library);
/* Registers the plug-ins in the library at a path by its initLibNvInferPlugins. */
char *conch_tensorrt_register_plugins(const char *path, conch_tensorrt_log log, void *owner);

/* `owner` outlives the runtime. */
char *conch_tensorrt_runtime_new(
    conch_tensorrt_library *library, conch_tensorrt_log log, void *owner, conch_tensorrt_runtime **runtime);
void conch_tensorrt_runtime_delete(conch_tensorrt_runtime *runtime);
/* Lets engines bring code of their own, as version-compatible ones do. False where TensorRT cannot. */
int32_t conch_tensorrt_allow_host_code(conch_tensorrt_runtime *runtime);
int32_t conch_tensorrt_dla_cores(conch_tensorrt_runtime *runtime);
void conch_tensorrt_set_dla_core(conch_tensorrt_runtime *runtime, int32_t core);

/* Null if the plan cannot be read. */
conch_tensorrt_engine *conch_tensorrt_engine_new(conch_tensorrt_runtime *runtime, const void *plan, size_t size);
void conch_tensorrt_engine_delete(conch_tensorrt_engine *engine);
int32_t conch_tensorrt_tensor_count(conch_tensorrt_engine *engine);
int32_t conch_tensorrt_profile_count(conch_tensorrt_engine *engine);
int32_t conch_tensorrt_describe(conch_tensorrt_engine *engine, int32_t index, conch_tensorrt_tensor *tensor);
/* Of an input in a profile: smallest (0), best (1) or largest (2). The count is -1 if there is none. */
void conch_tensorrt_profile_shape(
    conch_tensorrt_engine *engine, const char *name, int32_t profile, int32_t which, conch_tensorrt_shape *shape);
/* The same of the values of a shape tensor. False if there are none. */
int32_t conch_tensorrt_profile_values(
    conch_tensorrt_engine *engine, const char *name, int32_t profile, int32_t which, int64_t *values, size_t count);

/* `strategy`: 0 takes memory for the largest profile, 1 for the one that is chosen. Null if it cannot be had. */
conch_tensorrt_context *conch_tensorrt_context_new(conch_tensorrt_engine *engine, int32_t strategy);
void conch_tensorrt_context_delete(conch_tensorrt_context *context);
/* These return whether TensorRT took it. */
int32_t conch_tensorrt_set_profile(conch_tensorrt_context *context, int32_t profile, void *stream);
int32_t conch_tensorrt_set_shape(conch_tensorrt_context *context, const char *name, const conch_tensorrt_shape *shape);
int32_t conch_tensorrt_set_address(conch_tensorrt_context *context, const char *name, void *address);
/* `outputs` is copied; its `owner` outlives the context. */
int32_t conch_tensorrt_set_outputs(conch_tensorrt_context *context, const char *name, const conch_tensorrt_outputs *outputs);
/* Whether shapes and shape values of all inputs are known. */
int32_t conch_tensorrt_infer_shapes(conch_tensorrt_context *context);
void conch_tensorrt_tensor_shape(conch_tensorrt_context *context, const char *name, conch_tensorrt_shape *shape);
int32_t conch_tensorrt_enqueue(conch_tensorrt_context *context, void *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
