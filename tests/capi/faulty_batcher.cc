// A batching library that lets every request in and fails as the environment says: FAULTY=<throw or fail>_<batcher_initialize,
// batcher_finalize, initialize, include or finalize>.

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "triton/core/tritonbackend.h"

namespace {

TRITONSERVER_Error* Step(const std::string& step) {
  const char* fault = std::getenv("FAULTY");
  if (fault == "throw_" + step) throw std::runtime_error(step + " threw");
  if (fault != "fail_" + step) return nullptr;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, (step + " failed").c_str());
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher**, TRITONBACKEND_Model*) {
  return Step("batcher_initialize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher*) { return Step("batcher_finalize"); }

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher*, void** userp) {
  static int batch;
  *userp = &batch;
  return Step("initialize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request*, void*, bool* should_include) {
  *should_include = true;
  return Step("include");
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void*) { return Step("finalize"); }
}
