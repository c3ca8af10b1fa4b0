// What backends of tests share: the driver, loaded at run time, and errors of the server.
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define RETURN_IF_ERROR(call)              \
  do {                                     \
    Error* failed = (call);                \
    if (failed != NULL) return failed;     \
  } while (0)

typedef struct TRITONSERVER_Error Error;

typedef int Code;
typedef void *Context, *Stream, *Event, *Module, *Function;

static struct {
  void* library;
  Code (*Init)(unsigned flags);
  Code (*GetErrorName)(Code code, const char** name);
  Code (*DeviceGet)(int* device, int ordinal);
  Code (*ContextRetain)(Context* context, int device);
  Code (*ContextRelease)(int device);
  Code (*ContextSet)(Context context);
  Code (*ContextGet)(Context* context);
  Code (*StreamCreate)(Stream* stream, unsigned flags);
  Code (*StreamDestroy)(Stream stream);
  Code (*StreamSynchronize)(Stream stream);
  Code (*EventCreate)(Event* event, unsigned flags);
  Code (*EventRecord)(Event event, Stream stream);
  Code (*EventSynchronize)(Event event);
  Code (*EventQuery)(Event event);
  Code (*EventDestroy)(Event event);
  Code (*ModuleLoad)(Module* module, const void* text);
  Code (*ModuleFunction)(Function* function, Module module, const char* name);
  Code (*Launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                 unsigned shared_bytes, Stream stream, void** parameters, void** extra);
  Code (*HostAllocate)(void** address, size_t bytes, unsigned flags);
  Code (*Allocate)(uint64_t* address, size_t bytes);
  Code (*Free)(uint64_t address);
  Code (*Copy)(uint64_t to, uint64_t from, size_t bytes, Stream stream);
} cu;

enum { STREAM_NON_BLOCKING = 1, EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2 };

static Error* MakeError(TRITONSERVER_Error_Code code, const char* what, const char* more) {
  char text[400];
  snprintf(text, sizeof text, "%s: %s", what, more);
  return TRITONSERVER_ErrorNew(code, text);
}

static Error* Check(const char* call, Code code) {
  const char* name = NULL;
  if (code == 0) return NULL;
  if (cu.GetErrorName(code, &name) != 0 || name == NULL) name = "unknown error";
  return MakeError(TRITONSERVER_ERROR_INTERNAL, call, name);
}

static Error* OpenDriver(void) {
  const struct {
    const char* name;
    void* place;
  } functions[] = {
      {"cuInit", &cu.Init},
      {"cuGetErrorName", &cu.GetErrorName},
      {"cuDeviceGet", &cu.DeviceGet},
      {"cuDevicePrimaryCtxRetain", &cu.ContextRetain},
      {"cuDevicePrimaryCtxRelease_v2", &cu.ContextRelease},
      {"cuCtxSetCurrent", &cu.ContextSet},
      {"cuCtxGetCurrent", &cu.ContextGet},
      {"cuStreamCreate", &cu.StreamCreate},
      {"cuStreamDestroy_v2", &cu.StreamDestroy},
      {"cuStreamSynchronize", &cu.StreamSynchronize},
      {"cuEventCreate", &cu.EventCreate},
      {"cuEventRecord", &cu.EventRecord},
      {"cuEventSynchronize", &cu.EventSynchronize},
      {"cuEventQuery", &cu.EventQuery},
      {"cuEventDestroy_v2", &cu.EventDestroy},
      {"cuModuleLoadData", &cu.ModuleLoad},
      {"cuModuleGetFunction", &cu.ModuleFunction},
      {"cuLaunchKernel", &cu.Launch},
      {"cuMemHostAlloc", &cu.HostAllocate},
      {"cuMemAlloc_v2", &cu.Allocate},
      {"cuMemFree_v2", &cu.Free},
      {"cuMemcpyAsync", &cu.Copy},
  };
  cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (cu.library == NULL) return MakeError(TRITONSERVER_ERROR_UNAVAILABLE, "libcuda.so.1", dlerror());
  for (size_t index = 0; index < ARRAY_LENGTH(functions); index++) {
    void* found = dlsym(cu.library, functions[index].name);
    if (found == NULL) return MakeError(TRITONSERVER_ERROR_UNAVAILABLE, functions[index].name, "the driver has none");
    memcpy(functions[index].place, &found, sizeof found);
  }
  return Check("cuInit", cu.Init(0));
}

// For where no error can be returned.
static void Tell(Error* error) {
  if (error == NULL) return;
  Error* untold = TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
  if (untold != NULL) TRITONSERVER_ErrorDelete(untold);
  TRITONSERVER_ErrorDelete(error);
}
