// Stands in for CUDA's headers where upstream's test backends are built without them: device memory is main memory.
#pragma once
#include <cstddef>
#include <cstring>

typedef void* cudaStream_t;
typedef void* cudaEvent_t;
typedef int cudaError_t;
enum { cudaSuccess = 0 };
enum cudaMemcpyKind {
  cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};

static inline const char* cudaGetErrorString(cudaError_t) { return "no CUDA"; }
static inline cudaError_t cudaMemset(void* at, int value, size_t size) { memset(at, value, size); return cudaSuccess; }
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  memcpy(to, from, size);
  return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, size, kind);
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
#define LOG_IF_CUDA_ERROR(X, MESSAGE) do { (void)(X); } while (0)
