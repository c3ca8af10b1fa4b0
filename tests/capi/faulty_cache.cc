// A response cache that keeps nothing and fails as its configuration says: {"fault": "<throw or fail>_<initialize, finalize, lookup or
// insert>"}.

#include <stdexcept>
#include <string>

#include "triton/core/tritoncache.h"

namespace {

// What a step named `step` does if the configuration asks for it.
TRITONSERVER_Error* Step(const std::string& config, const std::string& step) {
  if (config.find("throw_" + step) != std::string::npos) throw std::runtime_error(step + " threw");
  if (config.find("fail_" + step) == std::string::npos) return nullptr;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, (step + " failed").c_str());
}

const std::string& Config(TRITONCACHE_Cache* cache) { return *reinterpret_cast<std::string*>(cache); }

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  TRITONSERVER_Error* error = Step(config, "initialize");
  if (error == nullptr) *cache = reinterpret_cast<TRITONCACHE_Cache*>(new std::string(config));
  return error;
}

TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache) {
  const std::string config = Config(cache);
  delete reinterpret_cast<std::string*>(cache);
  return Step(config, "finalize");
}

TRITONSERVER_Error* TRITONCACHE_CacheLookup(TRITONCACHE_Cache* cache, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*) {
  TRITONSERVER_Error* error = Step(Config(cache), "lookup");
  return error != nullptr ? error : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "keeps nothing");
}

TRITONSERVER_Error* TRITONCACHE_CacheInsert(TRITONCACHE_Cache* cache, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*) {
  return Step(Config(cache), "insert");
}
}
