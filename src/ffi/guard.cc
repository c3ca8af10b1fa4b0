// Calls into foreign code. Rust can catch neither a C++ exception nor a panic from another copy of its standard library, so every
// call into a plug-in passes through here, and what is thrown becomes a TRITONSERVER_Error.

#include <cstdint>
#include <exception>

extern "C" {

struct TRITONSERVER_Error;

// Defined in guard.rs: makes the error for an exception with this text (null if it has none).
TRITONSERVER_Error* conch_guard_caught(const char* what);
}

namespace {

template <typename Function, typename... Arguments>
TRITONSERVER_Error* Call(Function function, Arguments... arguments) {
  try {
    return function(arguments...);
  } catch (const std::exception& thrown) {
    return conch_guard_caught(thrown.what());
  } catch (const char* thrown) {
    return conch_guard_caught(thrown);
  } catch (...) {
    return conch_guard_caught(nullptr);
  }
}

}  // namespace

extern "C" {

TRITONSERVER_Error* conch_guard_call1(TRITONSERVER_Error* (*function)(void*), void* first) {
  return Call(function, first);
}

TRITONSERVER_Error* conch_guard_call2(TRITONSERVER_Error* (*function)(void*, void*), void* first, void* second) {
  return Call(function, first, second);
}

TRITONSERVER_Error* conch_guard_execute(TRITONSERVER_Error* (*function)(void*, void**, uint32_t), void* instance,
                                        void** requests, uint32_t count) {
  return Call(function, instance, requests, count);
}
}
