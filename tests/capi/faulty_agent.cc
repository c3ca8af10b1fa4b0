// A repository agent that does nothing and fails as the environment says: FAULTY=<throw or fail>_<initialize, finalize,
// model_initialize, model_finalize or action>.

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "triton/core/tritonrepoagent.h"

namespace {

TRITONSERVER_Error* Step(const std::string& step) {
  const char* fault = std::getenv("FAULTY");
  if (fault == "throw_" + step) throw std::runtime_error(step + " threw");
  if (fault != "fail_" + step) return nullptr;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, (step + " failed").c_str());
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent*) { return Step("initialize"); }

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent*) { return Step("finalize"); }

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*) {
  return Step("model_initialize");
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*) {
  return Step("model_finalize");
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*, const TRITONREPOAGENT_ActionType) {
  return Step("action");
}
}
