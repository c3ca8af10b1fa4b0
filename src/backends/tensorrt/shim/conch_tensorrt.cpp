// Calls TensorRT's C++ interface behind the C functions of shim.h. Compiled by scripts/build-tensorrt-shim against the headers of one
// major version: within it TensorRT only appends to its tables of functions, so one shim serves all minor versions. A function that is
// newer than the first minor version is called only where the library is new enough.
#include "shim.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "NvInferRuntime.h"

#ifdef TRT_MAJOR_RTX
#define IS_RTX 1
#define PRODUCT "TensorRT for RTX"
#define MARK "RTX "
#else
#define IS_RTX 0
#define PRODUCT "TensorRT"
#define MARK ""
#endif
// Whether the headers are of a version or a later one; TensorRT for RTX counts as the latest.
#define SINCE(major, minor) (IS_RTX || NV_TENSORRT_MAJOR > major || (NV_TENSORRT_MAJOR == major && NV_TENSORRT_MINOR >= minor))
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define HEADERS MARK TEXT(NV_TENSORRT_MAJOR) "." TEXT(NV_TENSORRT_MINOR)

using namespace nvinfer1;

namespace {

struct Version {
  int32_t number, major, minor, patch;
  bool is_rtx;
};

// As getInferLibVersion packs it: 8503 is 8.5.3, 10701 is RTX 1.7.1, 110400 is 11.4.0.
Version unpack(int32_t number) {
  if (number < 10000) return {number, number / 1000, number / 100 % 10, number % 100, false};
  return {number, number / 10000, number / 100 % 100, number % 100, number < 100000};
}

std::string text_of(const Version &version) {
  return std::string(version.is_rtx ? "TensorRT for RTX " : "TensorRT ") + std::to_string(version.major) + "." +
         std::to_string(version.minor) + "." + std::to_string(version.patch);
}

char *failure(const std::string &text) { return strdup(text.c_str()); }

class Logger : public ILogger {
 public:
  Logger(conch_tensorrt_log log, void *owner) : log_(log), owner_(owner) {}
  void log(Severity severity, char const *text) noexcept override {
    if (severity <= Severity::kERROR) has_errors_ = true;
    log_(owner_, static_cast<int32_t>(severity), text);
  }
  bool has_errors() const { return has_errors_; }

 private:
  std::atomic<bool> has_errors_{false};
  conch_tensorrt_log log_;
  void *owner_;
};

Dims dims_of(const conch_tensorrt_shape &shape) {
  Dims dims{};
  dims.nbDims = shape.count;
  for (int32_t index = 0; index < shape.count; ++index) dims.d[index] = shape.dims[index];
  return dims;
}

void give(const Dims &dims, conch_tensorrt_shape *shape) {
  shape->count = dims.nbDims > CONCH_TENSORRT_DIMS_MAX ? -1 : dims.nbDims;
  for (int32_t index = 0; index < shape->count; ++index) shape->dims[index] = dims.d[index];
}

// Memory for outputs whose size is known late, from the backend.
class Outputs : public IOutputAllocator {
 public:
  explicit Outputs(const conch_tensorrt_outputs &outputs) : outputs_(outputs) {}
#if !IS_RTX
  void *reallocateOutput(char const *name, void *, uint64_t size, uint64_t) noexcept override { return allocate(name, size); }
#endif
#if SINCE(10, 0)
  void *reallocateOutputAsync(char const *name, void *, uint64_t size, uint64_t, cudaStream_t) override { return allocate(name, size); }
#endif
  void notifyShape(char const *name, Dims const &dims) noexcept override {
    conch_tensorrt_shape shape{};
    give(dims, &shape);
    outputs_.set_shape(outputs_.owner, name, &shape);
  }

 private:
  void *allocate(char const *name, uint64_t size) noexcept { return outputs_.allocate(outputs_.owner, name, size); }
  conch_tensorrt_outputs outputs_;
};

}  // namespace

struct conch_tensorrt_library {
  Version version;
  void *(*create)(void *, int32_t);
};

struct conch_tensorrt_runtime {
  conch_tensorrt_runtime(conch_tensorrt_log log, void *owner, const Version &of) : logger(log, owner), version(of) {}
  Logger logger;
  Version version;
  std::unique_ptr<IRuntime> runtime;
};

struct conch_tensorrt_engine {
  Version version;
  std::unique_ptr<ICudaEngine> engine;
};

struct conch_tensorrt_context {
  std::map<std::string, std::unique_ptr<Outputs>> outputs;
  std::unique_ptr<IExecutionContext> context;
};

uint32_t conch_tensorrt_interface(void) { return CONCH_TENSORRT_INTERFACE; }

const char *conch_tensorrt_headers(void) { return HEADERS; }

void conch_tensorrt_free_text(char *text) { free(text); }

char *conch_tensorrt_open(const char *path, conch_tensorrt_library **library) {
  // Plug-ins that a model brings look the registry up in the process.
  void *handle = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
  if (handle == nullptr) return failure(std::string("cannot be loaded: ") + dlerror());
  auto version = reinterpret_cast<int32_t (*)()>(dlsym(handle, "getInferLibVersion"));
  auto create = reinterpret_cast<void *(*)(void *, int32_t)>(dlsym(handle, "createInferRuntime_INTERNAL"));
  if (version == nullptr || create == nullptr) return failure("is not TensorRT's: it has no createInferRuntime_INTERNAL");
  Version found = unpack(version());
  if (found.is_rtx != bool(IS_RTX) || found.major != NV_TENSORRT_MAJOR)
    return failure("is " + text_of(found) + ", and the shim is compiled for " PRODUCT " " TEXT(NV_TENSORRT_MAJOR));
  *library = new conch_tensorrt_library{found, create};
  return nullptr;
}

char *conch_tensorrt_register_plugins(const char *path, conch_tensorrt_log log, void *owner) {
  void *handle = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
  if (handle == nullptr) return failure(dlerror());
  auto initialize = reinterpret_cast<bool (*)(void *, char const *)>(dlsym(handle, "initLibNvInferPlugins"));
  if (initialize == nullptr) return failure(std::string(path) + " has no initLibNvInferPlugins");
  // The registry keeps the logger.
  auto *logger = new Logger(log, owner);
  return initialize(logger, "") ? nullptr : failure(std::string(path) + ": initLibNvInferPlugins failed");
}

char *conch_tensorrt_runtime_new(
    conch_tensorrt_library *library, conch_tensorrt_log log, void *owner, conch_tensorrt_runtime **runtime) {
  std::unique_ptr<conch_tensorrt_runtime> made(new conch_tensorrt_runtime(log, owner, library->version));
  // The library refuses a caller that was compiled for a newer minor version; what that added is not called.
  void *created = library->create(&made->logger, library->version.number);
  // Without a device the lean runtime returns what is neither null nor a runtime, after an error in the log.
  if (created == nullptr || made->logger.has_errors()) return failure("unable to create TensorRT runtime");
  made->runtime.reset(static_cast<IRuntime *>(created));
  *runtime = made.release();
  return nullptr;
}

void conch_tensorrt_runtime_delete(conch_tensorrt_runtime *runtime) { delete runtime; }

int32_t conch_tensorrt_allow_host_code(conch_tensorrt_runtime *runtime) {
#if SINCE(8, 6)
  if (runtime->version.number / 100 == 85) return 0;
  runtime->runtime->setEngineHostCodeAllowed(true);
  return runtime->runtime->getEngineHostCodeAllowed();
#else
  (void)runtime;
  return 0;
#endif
}

int32_t conch_tensorrt_dla_cores(conch_tensorrt_runtime *runtime) { return runtime->runtime->getNbDLACores(); }

void conch_tensorrt_set_dla_core(conch_tensorrt_runtime *runtime, int32_t core) { runtime->runtime->setDLACore(core); }

conch_tensorrt_engine *conch_tensorrt_engine_new(conch_tensorrt_runtime *runtime, const void *plan, size_t size) {
  std::unique_ptr<ICudaEngine> engine(runtime->runtime->deserializeCudaEngine(plan, size));
  if (engine == nullptr) return nullptr;
  return new conch_tensorrt_engine{runtime->version, std::move(engine)};
}

void conch_tensorrt_engine_delete(conch_tensorrt_engine *engine) { delete engine; }

int32_t conch_tensorrt_tensor_count(conch_tensorrt_engine *engine) { return engine->engine->getNbIOTensors(); }

int32_t conch_tensorrt_profile_count(conch_tensorrt_engine *engine) { return engine->engine->getNbOptimizationProfiles(); }

int32_t conch_tensorrt_describe(conch_tensorrt_engine *engine, int32_t index, conch_tensorrt_tensor *tensor) {
  ICudaEngine &of = *engine->engine;
  char const *name = of.getIOTensorName(index);
  if (name == nullptr) return 0;
  tensor->name = name;
  tensor->data_type = static_cast<int32_t>(of.getTensorDataType(name));
  tensor->format = static_cast<int32_t>(of.getTensorFormat(name));
  tensor->format_text = of.getTensorFormatDesc(name);
  tensor->is_input = of.getTensorIOMode(name) == TensorIOMode::kINPUT;
  tensor->is_shape = of.isShapeInferenceIO(name);
  tensor->is_on_host = of.getTensorLocation(name) == TensorLocation::kHOST;
  tensor->vectorized_dim = of.getTensorVectorizedDim(name);
  tensor->components = of.getTensorComponentsPerElement(name);
  give(of.getTensorShape(name), &tensor->shape);
  return 1;
}

void conch_tensorrt_profile_shape(
    conch_tensorrt_engine *engine, const char *name, int32_t profile, int32_t which, conch_tensorrt_shape *shape) {
  give(engine->engine->getProfileShape(name, profile, static_cast<OptProfileSelector>(which)), shape);
}

int32_t conch_tensorrt_profile_values(
    conch_tensorrt_engine *engine, const char *name, int32_t profile, int32_t which, int64_t *values, size_t count) {
  auto selector = static_cast<OptProfileSelector>(which);
#if SINCE(10, 11)
  if (IS_RTX || engine->version.number >= 101100) {
    int64_t const *found = engine->engine->getProfileTensorValuesV2(name, profile, selector);
    if (found != nullptr) memcpy(values, found, count * sizeof(int64_t));
    return found != nullptr;
  }
#endif
#if !IS_RTX && NV_TENSORRT_MAJOR < 11
#if NV_TENSORRT_MAJOR < 10
  int32_t const *found = engine->engine->getProfileShapeValues(profile, engine->engine->getBindingIndex(name), selector);
#else
  int32_t const *found = engine->engine->getProfileTensorValues(name, profile, selector);
#endif
  if (found != nullptr)
    for (size_t index = 0; index < count; ++index) values[index] = found[index];
  return found != nullptr;
#else
  return 0;
#endif
}

conch_tensorrt_context *conch_tensorrt_context_new(conch_tensorrt_engine *engine, int32_t strategy) {
#if SINCE(10, 0)
  auto chosen = strategy == 1 ? ExecutionContextAllocationStrategy::kON_PROFILE_CHANGE : ExecutionContextAllocationStrategy::kSTATIC;
  std::unique_ptr<IExecutionContext> context(engine->engine->createExecutionContext(chosen));
#else
  (void)strategy;
  std::unique_ptr<IExecutionContext> context(engine->engine->createExecutionContext());
#endif
  if (context == nullptr) return nullptr;
  return new conch_tensorrt_context{{}, std::move(context)};
}

void conch_tensorrt_context_delete(conch_tensorrt_context *context) { delete context; }

int32_t conch_tensorrt_set_profile(conch_tensorrt_context *context, int32_t profile, void *stream) {
  return context->context->setOptimizationProfileAsync(profile, static_cast<cudaStream_t>(stream));
}

int32_t conch_tensorrt_set_shape(conch_tensorrt_context *context, const char *name, const conch_tensorrt_shape *shape) {
  return context->context->setInputShape(name, dims_of(*shape));
}

int32_t conch_tensorrt_set_address(conch_tensorrt_context *context, const char *name, void *address) {
  return context->context->setTensorAddress(name, address);
}

int32_t conch_tensorrt_set_outputs(conch_tensorrt_context *context, const char *name, const conch_tensorrt_outputs *outputs) {
  std::unique_ptr<Outputs> made(new Outputs(*outputs));
  if (!context->context->setOutputAllocator(name, made.get())) return 0;
  context->outputs[name] = std::move(made);
  return 1;
}

int32_t conch_tensorrt_infer_shapes(conch_tensorrt_context *context) { return context->context->inferShapes(0, nullptr) == 0; }

void conch_tensorrt_tensor_shape(conch_tensorrt_context *context, const char *name, conch_tensorrt_shape *shape) {
  give(context->context->getTensorShape(name), shape);
}

int32_t conch_tensorrt_enqueue(conch_tensorrt_context *context, void *stream) {
  return context->context->enqueueV3(static_cast<cudaStream_t>(stream));
}
