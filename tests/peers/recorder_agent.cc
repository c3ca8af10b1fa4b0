// A repository agent that writes down how a server calls it, one line per event, into the file named by AGENT_LOG; and does at each
// action what the parameters of its entry in the model's configuration say:
//   fail=<action>      an error
//   throw=<action>     a C++ exception
//   relocate=<path>    the model is loaded from there
//   copy=<file>        the model's directory is made anew in a directory of the server's: version 1 with this file

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "triton/core/tritonrepoagent.h"

namespace {

using Agent = TRITONREPOAGENT_Agent;
using Model = TRITONREPOAGENT_AgentModel;

const char* const kActions[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

void Write(const std::string& line) {
  const char* path = std::getenv("AGENT_LOG");
  if (path == nullptr) return;
  FILE* file = std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s\n", line.c_str());
  std::fclose(file);
}

// The outcome of a call, and the end of its error.
std::string Outcome(TRITONSERVER_Error* error) {
  if (error == nullptr) return "ok";
  const std::string text = std::string(TRITONSERVER_ErrorCodeString(error)) + ": " + TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  return text;
}

std::string Location(Agent* agent, Model* model) {
  TRITONREPOAGENT_ArtifactType type = TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM;
  const char* location = nullptr;
  const std::string outcome = Outcome(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location));
  if (outcome != "ok") return outcome;
  if (type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) return "of another type";
  return location;
}

std::map<std::string, std::string> Parameters(Agent* agent, Model* model) {
  std::map<std::string, std::string> all;
  uint32_t count = 0;
  Outcome(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char *name = nullptr, *value = nullptr;
    if (Outcome(TRITONREPOAGENT_ModelParameter(agent, model, index, &name, &value)) == "ok") all[name] = value;
  }
  const char *name = nullptr, *value = nullptr;
  Write("  parameter beyond: " + Outcome(TRITONREPOAGENT_ModelParameter(agent, model, count, &name, &value)));
  return all;
}

std::string Config(Agent* agent, Model* model, uint32_t version) {
  TRITONSERVER_Message* message = nullptr;
  const std::string outcome = Outcome(TRITONREPOAGENT_ModelConfig(agent, model, version, &message));
  if (outcome != "ok") return outcome;
  const char* base = nullptr;
  size_t size = 0;
  Outcome(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  const std::string json(base, size);
  TRITONSERVER_MessageDelete(message);
  return json.find("\"identity\"") == std::string::npos ? "strange: " + json : "names the backend";
}

void Look(Agent* agent, Model* model) {
  const std::string location = Location(agent, model);
  Write("  lies in " + location.substr(location.rfind('/') + 1));
  for (const auto& entry : Parameters(agent, model)) Write("  parameter " + entry.first);
  Write("  config 1: " + Config(agent, model, 1));
  Write("  config 2: " + Outcome([&] {
          TRITONSERVER_Message* message = nullptr;
          return TRITONREPOAGENT_ModelConfig(agent, model, 2, &message);
        }()));
  void* state = nullptr;
  Outcome(TRITONREPOAGENT_State(agent, &state));
  Write(std::string("  agent's state ") + (state == nullptr ? "is gone" : static_cast<const char*>(state)));
  Outcome(TRITONREPOAGENT_ModelState(model, &state));
  Write(std::string("  model's state ") + (state == nullptr ? "is gone" : static_cast<const char*>(state)));
  const char *first = nullptr, *second = nullptr;
  Outcome(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &first));
  Outcome(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &second));
  struct stat status;
  const bool is_directory = first != nullptr && stat(first, &status) == 0 && S_ISDIR(status.st_mode);
  Write(std::string("  acquired ") + (is_directory && std::strcmp(first, second) == 0 ? "one directory" : "something else"));
  const std::string path = first == nullptr ? "" : first;
  Write("  release: " + Outcome(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, first)));
  Write(std::string("  which is ") + (stat(path.c_str(), &status) == 0 ? "still there" : "gone"));
  Write("  release again: " + Outcome(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, path.c_str())));
  Write("  acquire elsewhere: " +
        Outcome(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, &first)));
}

TRITONSERVER_Error* Copy(Agent* agent, Model* model, const std::string& file) {
  const char* directory = nullptr;
  TRITONSERVER_Error* error =
      TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &directory);
  if (error != nullptr) return error;
  const std::string version = std::string(directory) + "/1";
  mkdir(version.c_str(), 0700);
  FILE* made = std::fopen((version + "/" + file).c_str(), "w");
  if (made != nullptr) std::fclose(made);
  Write(std::string("  copied to ") + directory);
  return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, directory);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(Agent* agent) {
  uint32_t major = 9, minor = 9;
  Outcome(TRITONREPOAGENT_ApiVersion(&major, &minor));
  Write("Initialize " + std::to_string(major) + "." + std::to_string(minor));
  return TRITONREPOAGENT_SetState(agent, const_cast<char*>("of the agent"));
}

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(Agent*) {
  Write("Finalize");
  return nullptr;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(Agent* agent, Model* model) {
  Write("ModelInitialize");
  Write("  update: " +
        Outcome(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "/elsewhere")));
  return TRITONREPOAGENT_ModelSetState(model, const_cast<char*>("of the model"));
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(Agent*, Model*) {
  Write("ModelFinalize");
  return nullptr;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(Agent* agent, Model* model, const TRITONREPOAGENT_ActionType type) {
  const std::string action = kActions[type];
  Write(action);
  if (type == TRITONREPOAGENT_ACTION_LOAD) Look(agent, model);
  std::map<std::string, std::string> parameters = Parameters(agent, model);
  if (parameters["throw"] == action) throw std::runtime_error("thrown on purpose");
  if (parameters["fail"] == action) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "refused on purpose");
  if (type == TRITONREPOAGENT_ACTION_LOAD_COMPLETE) {
    Write("  update: " +
          Outcome(TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "/elsewhere")));
  }
  if (type != TRITONREPOAGENT_ACTION_LOAD) return nullptr;
  if (!parameters["copy"].empty()) return Copy(agent, model, parameters["copy"]);
  if (!parameters["relocate"].empty()) {
    return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, parameters["relocate"].c_str());
  }
  return nullptr;
}
}
