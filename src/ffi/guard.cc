// Calls into foreign code. Rust can catch neither a C++ exception nor a panic from another copy of its standard library, so every
// call into a plug-in passes through here, and what is thrown becomes a TRITONSERVER_Error.

#include <cstdint>

#include "guard.h"

namespace {

template <typename Function, typename... Arguments>
TRITONSERVER_Error* Call(Caught* caught, Function function, Arguments... arguments) {
  return Guarded(caught, [&] { return function(arguments...); });
}

}  // namespace

extern "C" {

TRITONSERVER_Error* conch_guard_call1(Caught* caught, TRITONSERVER_Error* (*function)(void*), void* first) {
  return Call(caught, function, first);
}

TRITONSERVER_Error* conch_guard_call2(Caught* caught, TRITONSERVER_Error* (*function)(void*, void*), void* first, void* second) {
  return Call(caught, function, first, second);
}

TRITONSERVER_Error* conch_guard_call4(Caught* caught, TRITONSERVER_Error* (*function)(void*, void*, void*, void*), void* first,
                                      void* second, void* third, void* fourth) {
  return Call(caught, function, first, second, third, fourth);
}

TRITONSERVER_Error* conch_guard_execute(Caught* caught, TRITONSERVER_Error* (*function)(void*, void**, uint32_t), void* instance,
                                        void** requests, uint32_t count) {
  return Call(caught, function, instance, requests, count);
}

TRITONSERVER_Error* conch_guard_execute_begin(Caught* caught,
                                              TRITONSERVER_Error* (*function)(void*, void**, uint32_t, uint64_t, bool*),
                                              void* instance, void** requests, uint32_t count, uint64_t wait_ns, bool* is_open) {
  return Call(caught, function, instance, requests, count, wait_ns, is_open);
}

TRITONSERVER_Error* conch_guard_include(Caught* caught, TRITONSERVER_Error* (*function)(void*, void*, bool*), void* request, void* batch,
                                        bool* joins) {
  return Call(caught, function, request, batch, joins);
}

TRITONSERVER_Error* conch_guard_action(Caught* caught, TRITONSERVER_Error* (*function)(void*, void*, uint32_t), void* agent, void* model,
                                       uint32_t action) {
  return Call(caught, function, agent, model, action);
}
}
