// Calls into foreign code. Rust can catch neither a C++ exception nor a panic from another copy of its standard library, so every
// call into a plug-in passes through here, and what is thrown becomes a TRITONSERVER_Error.

#include <cstdint>
#include <exception>

struct TRITONSERVER_Error;

// Makes the error for an exception with this text (null if it has none). Passed in, so that no symbol is needed for it.
extern "C" typedef TRITONSERVER_Error* Caught(const char* what);

namespace {

template <typename Function, typename... Arguments>
TRITONSERVER_Error* Call(Caught* caught, Function function, Arguments... arguments) {
  try {
    return function(arguments...);
  } catch (const std::exception& thrown) {
    return caught(thrown.what());
  } catch (const char* thrown) {
    return caught(thrown);
  } catch (...) {
    return caught(nullptr);
  }
}

}  // namespace

extern "C" {

TRITONSERVER_Error* conch_guard_call1(Caught* caught, TRITONSERVER_Error* (*function)(void*), void* first) {
  return Call(caught, function, first);
}

TRITONSERVER_Error* conch_guard_call2(Caught* caught, TRITONSERVER_Error* (*function)(void*, void*), void* first, void* second) {
  return Call(caught, function, first, second);
}

TRITONSERVER_Error* conch_guard_execute(Caught* caught, TRITONSERVER_Error* (*function)(void*, void**, uint32_t), void* instance,
                                        void** requests, uint32_t count) {
  return Call(caught, function, instance, requests, count);
}
}
