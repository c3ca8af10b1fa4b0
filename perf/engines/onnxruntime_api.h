/* What the programs of this folder call of ONNX Runtime. Functions by their index in OrtApi, which only ever grows at its end. */

#ifndef ONNXRUNTIME_API_H
#define ONNXRUNTIME_API_H

#include "loop.h"

typedef void* Status;
typedef struct {
  const void* const* (*GetApi)(uint32_t version);
} ApiBase;

static const void* const* api;
#define ORT(index, ...) ((Status(*)(__VA_ARGS__))api[index])
#define GET_ERROR_MESSAGE ((const char* (*)(Status))api[2])
#define CREATE_ENV ORT(3, int, const char*, void**)
#define CREATE_SESSION ORT(7, void*, const char*, void*, void**)
#define RUN ORT(9, void*, void*, const char* const*, void* const*, size_t, const char* const*, size_t, void**)
#define CREATE_SESSION_OPTIONS ORT(10, void**)
#define SET_INTRA_OP_THREADS ORT(24, void*, int)
#define CREATE_TENSOR_WITH_DATA ORT(49, void*, void*, size_t, const int64_t*, size_t, int, void**)
#define TENSOR_DATA ORT(51, void*, void**)
#define CREATE_MEMORY_INFO ORT(68, const char*, int, int, int, void**)
#define CREATE_CPU_MEMORY_INFO ORT(69, int, int, void**)
#define RELEASE_VALUE ((void (*)(void*))api[96])
#define RUN_WITH_BINDING ORT(133, void*, const void*, const void*)
#define CREATE_BINDING ORT(134, void*, void**)
#define BIND_INPUT ORT(136, void*, const char*, const void*)
#define BIND_OUTPUT ORT(137, void*, const char*, const void*)
#define APPEND_CUDA ORT(204, void*, const void*)
#define CREATE_CUDA_OPTIONS ORT(205, void**)
#define UPDATE_CUDA_OPTIONS ORT(206, void*, const char* const*, const char* const*, size_t)
#define RELEASE_CUDA_OPTIONS ((void (*)(void*))api[208])
#define SET_CUDA_POINTER ORT(263, void*, const char*, void*)

static inline void check(Status status) {
  if (status != NULL) fail("ONNX Runtime", GET_ERROR_MESSAGE(status));
}

/* Opens the library; `version` is the first whose functions are called. */
static inline void open_onnxruntime(const char* library, uint32_t version) {
  api = ((const ApiBase* (*)(void))symbol_of(library_at(library), "OrtGetApiBase"))()->GetApi(version);
  if (api == NULL) fail(library, "it is older than this program needs");
}

#endif
