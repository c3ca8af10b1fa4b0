// The functions of CUDA's driver that the double calls, from the library that the server has opened: the machine's own, or its double.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

struct Driver {
  int (*copy)(uint64_t to, uint64_t from, size_t size, void *stream);
  int (*call)(void *stream, void (*function)(void *), void *data);
  int (*allocate)(void **memory, size_t size, unsigned flags);
  int (*free)(void *memory);
  int (*synchronize)(void *stream);
  int (*is_capturing)(void *stream, int *status);

  static const Driver &get() {
    static const Driver driver = open();
    return driver;
  }

 private:
  template <typename F>
  static void find(void *library, const char *name, F &function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (function == nullptr) {
      fprintf(stderr, "the double of TensorRT finds no %s\n", name);
      abort();
    }
  }

  static Driver open() {
    Driver driver{};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
      fprintf(stderr, "the double of TensorRT: %s\n", dlerror());
      abort();
    }
    find(library, "cuMemcpyAsync", driver.copy);
    find(library, "cuLaunchHostFunc", driver.call);
    find(library, "cuMemHostAlloc", driver.allocate);
    find(library, "cuMemFreeHost", driver.free);
    find(library, "cuStreamSynchronize", driver.synchronize);
    find(library, "cuStreamIsCapturing", driver.is_capturing);
    return driver;
  }
};
