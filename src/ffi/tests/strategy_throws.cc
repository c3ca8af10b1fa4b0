// A batching library all of whose functions throw; its start only if it is compiled so.

#include <stdexcept>
#include <string>

#include "triton/core/tritonbackend.h"

namespace {

TRITONSERVER_Error* Throw(const char* where) { throw std::runtime_error(std::string("thrown by ") + where); }

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model*) {
  *batcher = nullptr;
#ifdef THROWS_AT_START
  return Throw("BatcherInitialize");
#else
  return nullptr;
#endif
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher*) { return Throw("BatcherFinalize"); }

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher*, void** userp) {
  static int something;
  *userp = &something;
  return Throw("BatchInitialize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request*, void*, bool*) {
  // Not even an exception of the standard library.
  throw 7;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void*) { return Throw("BatchFinalize"); }
}
