// The one way into foreign code: what is thrown there becomes a TRITONSERVER_Error.

#pragma once

#include <cxxabi.h>

#include <exception>

struct TRITONSERVER_Error;

// Makes the error for an exception with this text (null if it has none). Passed in, so that no symbol is needed for it.
extern "C" typedef TRITONSERVER_Error* Caught(const char* what);

// In a handler: lets go of an exception that C++ did not throw. A panic of a Rust plug-in ends the process when it is destroyed by
// anyone but its own runtime, as the end of the handler would. So the runtime of C++ forgets that it has it (the list of caught
// exceptions is the first word of its globals, by the Itanium C++ ABI), and the exception, some bytes, is left alone.
inline void ForgetForeign() {
  if (std::current_exception() == nullptr) *reinterpret_cast<void**>(abi::__cxa_get_globals()) = nullptr;
}

template <typename Body>
TRITONSERVER_Error* Guarded(Caught* caught, Body body) {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return caught(thrown.what());
  } catch (const char* thrown) {
    return caught(thrown);
  } catch (...) {
    ForgetForeign();
    return caught(nullptr);
  }
}
