// The server's library, opened at run time with RTLD_LOCAL as embedders do, and what the programs here share.
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonserver.h"

// The header leaves the tags to C.
typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Server TRITONSERVER_Server;
typedef struct TRITONSERVER_ServerOptions TRITONSERVER_ServerOptions;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONSERVER_Metrics TRITONSERVER_Metrics;
typedef struct TRITONSERVER_Parameter TRITONSERVER_Parameter;
typedef struct TRITONSERVER_InferenceRequest TRITONSERVER_InferenceRequest;
typedef struct TRITONSERVER_InferenceResponse TRITONSERVER_InferenceResponse;
typedef struct TRITONSERVER_InferenceTrace TRITONSERVER_InferenceTrace;
typedef struct TRITONSERVER_ResponseAllocator TRITONSERVER_ResponseAllocator;
typedef struct TRITONSERVER_BufferAttributes TRITONSERVER_BufferAttributes;

static void* api_library;

static void* api_find(const char* name) {
  void* found = dlsym(api_library, name);
  if (found == NULL) {
    fprintf(stderr, "no %s: %s\n", name, dlerror());
    exit(1);
  }
  return found;
}

// The function TRITONSERVER_<name>. Looked up once per place of use.
#define TS(name)                                                                          \
  (*({                                                                                    \
    static __typeof__(&TRITONSERVER_##name) found;                                        \
    if (found == NULL) found = (__typeof__(found))api_find("TRITONSERVER_" #name);        \
    found;                                                                                \
  }))

#define FAIL(...)                                             \
  do {                                                        \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);           \
    fprintf(stderr, __VA_ARGS__);                             \
    fputc('\n', stderr);                                      \
    exit(1);                                                  \
  } while (0)

#define EXPECT(condition) \
  do {                    \
    if (!(condition)) FAIL("expected %s", #condition); \
  } while (0)

// The call must succeed.
#define OK(call)                                                                  \
  do {                                                                            \
    TRITONSERVER_Error* failed = (call);                                          \
    if (failed != NULL) FAIL("%s: %s", #call, TS(ErrorMessage)(failed));          \
  } while (0)

// The call must fail with this code and a message that begins with `text`.
#define REFUSED(call, code, text)                                                                          \
  do {                                                                                                     \
    TRITONSERVER_Error* failed = (call);                                                                   \
    if (failed == NULL) FAIL("%s succeeded", #call);                                                       \
    if (TS(ErrorCode)(failed) != (code) || strncmp(TS(ErrorMessage)(failed), (text), strlen(text)) != 0)   \
      FAIL("%s: %d %s", #call, (int)TS(ErrorCode)(failed), TS(ErrorMessage)(failed));                      \
    TS(ErrorDelete)(failed);                                                                               \
  } while (0)

static void api_open(const char* path) {
  api_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (api_library == NULL) FAIL("%s", dlerror());
}

// A server of `repository` with the backends of a directory; fails the program if it does not start.
static inline TRITONSERVER_Server* api_start(const char* id, const char* repository, const char* backends,
                                             TRITONSERVER_ModelControlMode mode) {
  TRITONSERVER_ServerOptions* options = NULL;
  OK(TS(ServerOptionsNew)(&options));
  OK(TS(ServerOptionsSetServerId)(options, id));
  OK(TS(ServerOptionsSetModelRepositoryPath)(options, repository));
  OK(TS(ServerOptionsSetBackendDirectory)(options, backends));
  OK(TS(ServerOptionsSetModelControlMode)(options, mode));
  OK(TS(ServerOptionsSetLogInfo)(options, false));
  OK(TS(ServerOptionsSetStrictModelConfig)(options, false));
  OK(TS(ServerOptionsSetExitTimeout)(options, 20));
  TRITONSERVER_Server* server = NULL;
  OK(TS(ServerNew)(&server, options));
  OK(TS(ServerOptionsDelete)(options));
  return server;
}

// An output of a response, as the server tells it.
struct Output {
  const char* name;
  TRITONSERVER_DataType data_type;
  const int64_t* shape;
  uint64_t rank;
  const void* base;
  size_t bytes;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  void* userp;
};

static inline struct Output output_of(TRITONSERVER_InferenceResponse* response, uint32_t index) {
  struct Output output;
  OK(TS(InferenceResponseOutput)(response, index, &output.name, &output.data_type, &output.shape, &output.rank, &output.base, &output.bytes,
                                 &output.memory_type, &output.memory_type_id, &output.userp));
  return output;
}
