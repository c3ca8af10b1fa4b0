// The one way into foreign code: what is thrown there becomes a TRITONSERVER_Error.

#pragma once

#include <exception>

struct TRITONSERVER_Error;

// Makes the error for an exception with this text (null if it has none). Passed in, so that no symbol is needed for it.
extern "C" typedef TRITONSERVER_Error* Caught(const char* what);

template <typename Body>
TRITONSERVER_Error* Guarded(Caught* caught, Body body) {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return caught(thrown.what());
  } catch (const char* thrown) {
    return caught(thrown);
  } catch (...) {
    return caught(nullptr);
  }
}
