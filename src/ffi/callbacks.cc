// Calls into the callbacks of an embedder: its response allocator, its completions, its traces.

#include <cstddef>
#include <cstdint>

#include "guard.h"

extern "C" {

TRITONSERVER_Error* conch_guard_allocate(Caught* caught,
                                         TRITONSERVER_Error* (*function)(void*, const char*, size_t, uint32_t, int64_t, void*, void**,
                                                                         void**, uint32_t*, int64_t*),
                                         void* allocator, const char* name, size_t bytes, uint32_t type, int64_t type_id, void* userp,
                                         void** buffer, void** buffer_userp, uint32_t* actual_type, int64_t* actual_type_id) {
  return Guarded(caught, [&] {
    return function(allocator, name, bytes, type, type_id, userp, buffer, buffer_userp, actual_type, actual_type_id);
  });
}

TRITONSERVER_Error* conch_guard_query(Caught* caught,
                                      TRITONSERVER_Error* (*function)(void*, void*, const char*, size_t*, uint32_t*, int64_t*),
                                      void* allocator, void* userp, const char* name, size_t* bytes, uint32_t* type, int64_t* type_id) {
  return Guarded(caught, [&] { return function(allocator, userp, name, bytes, type, type_id); });
}

TRITONSERVER_Error* conch_guard_attributes(Caught* caught, TRITONSERVER_Error* (*function)(void*, const char*, void*, void*, void*),
                                           void* allocator, const char* name, void* attributes, void* userp, void* buffer_userp) {
  return Guarded(caught, [&] { return function(allocator, name, attributes, userp, buffer_userp); });
}

TRITONSERVER_Error* conch_guard_free(Caught* caught, TRITONSERVER_Error* (*function)(void*, void*, void*, size_t, uint32_t, int64_t),
                                     void* allocator, void* buffer, void* buffer_userp, size_t bytes, uint32_t type, int64_t type_id) {
  return Guarded(caught, [&] { return function(allocator, buffer, buffer_userp, bytes, type, type_id); });
}

TRITONSERVER_Error* conch_guard_complete(Caught* caught, void (*function)(void*, uint32_t, void*), void* object, uint32_t flags,
                                         void* userp) {
  return Guarded(caught, [&]() -> TRITONSERVER_Error* {
    function(object, flags, userp);
    return nullptr;
  });
}

TRITONSERVER_Error* conch_guard_activity(Caught* caught, void (*function)(void*, uint32_t, uint64_t, void*), void* trace,
                                         uint32_t activity, uint64_t timestamp_ns, void* userp) {
  return Guarded(caught, [&]() -> TRITONSERVER_Error* {
    function(trace, activity, timestamp_ns, userp);
    return nullptr;
  });
}

TRITONSERVER_Error* conch_guard_tensor_activity(Caught* caught,
                                                void (*function)(void*, uint32_t, const char*, uint32_t, const void*, size_t,
                                                                 const int64_t*, uint64_t, uint32_t, int64_t, void*),
                                                void* trace, uint32_t activity, const char* name, uint32_t data_type, const void* base,
                                                size_t bytes, const int64_t* shape, uint64_t dim_count, uint32_t type, int64_t type_id,
                                                void* userp) {
  return Guarded(caught, [&]() -> TRITONSERVER_Error* {
    function(trace, activity, name, data_type, base, bytes, shape, dim_count, type, type_id, userp);
    return nullptr;
  });
}

TRITONSERVER_Error* conch_guard_trace_release(Caught* caught, void (*function)(void*, void*), void* trace, void* userp) {
  return Guarded(caught, [&]() -> TRITONSERVER_Error* {
    function(trace, userp);
    return nullptr;
  });
}
}
