/* What the programs of this folder call of NVIDIA's driver, which is opened at run time. */

#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include "loop.h"

static void *driver, *context;

static inline void cuda_check(const char* name, int code) {
  char text[64];
  if (code == 0) return;
  snprintf(text, sizeof text, "the driver's error %d", code);
  fail(name, text);
}

/* A function is looked up once for each place that calls it; threads that do so at once find the same. */
#define CUDA(name, types, ...)                                                \
  do {                                                                        \
    static int(*found) types;                                                 \
    if (found == NULL) found = (int (*) types)symbol_of(driver, #name);       \
    cuda_check(#name, found(__VA_ARGS__));                                    \
  } while (0)

/* Makes the device's primary context, which libraries with the runtime API share, and has this thread use it. */
static inline void open_device(int number) {
  int device;
  driver = library_at("libcuda.so.1");
  CUDA(cuInit, (unsigned), 0);
  CUDA(cuDeviceGet, (int*, int), &device, number);
  CUDA(cuDevicePrimaryCtxRetain, (void**, int), &context, device);
  CUDA(cuCtxSetCurrent, (void*), context);
}

static inline void* new_stream(void) {
  void* stream;
  /* 1: it does not wait for the default stream. */
  CUDA(cuStreamCreate, (void**, unsigned), &stream, 1);
  return stream;
}

static inline void* pinned_memory(size_t size) {
  void* memory;
  CUDA(cuMemHostAlloc, (void**, size_t, unsigned), &memory, size, 0);
  return memory;
}

static inline void* device_memory(size_t size) {
  unsigned long long address;
  CUDA(cuMemAlloc_v2, (unsigned long long*, size_t), &address, size);
  return (void*)(uintptr_t)address;
}

/* Has this thread use the device, as the one that opened it does. */
static inline void use_device(void) {
  CUDA(cuCtxSetCurrent, (void*), context);
}

static inline void wait_for(void* stream) {
  CUDA(cuStreamSynchronize, (void*), stream);
}

static inline void enqueue_to_device(void* target, const void* source, size_t size, void* stream) {
  CUDA(cuMemcpyHtoDAsync_v2, (unsigned long long, const void*, size_t, void*), (uintptr_t)target, source, size, stream);
}

static inline void enqueue_to_host(void* target, const void* source, size_t size, void* stream) {
  CUDA(cuMemcpyDtoHAsync_v2, (void*, unsigned long long, size_t, void*), target, (uintptr_t)source, size, stream);
}

static inline void to_device(void* target, const void* source, size_t size, void* stream) {
  enqueue_to_device(target, source, size, stream);
  wait_for(stream);
}

static inline void to_host(void* target, const void* source, size_t size, void* stream) {
  enqueue_to_host(target, source, size, stream);
  wait_for(stream);
}

#endif
