// A double of TensorRT's library, for tests: it reads plans of its own (plan.h) and runs them behind TensorRT's own tables of functions.
// The work of a run is what a real one is to CUDA: enqueued on the stream, on addresses of the device, and captured into graphs. Tensors
// are copied to pinned memory, a function on the stream computes, and results are copied back.
//
// Operations, on FP32, INT32 and INT64 except for the first: `identity A`, `add A B`, `rows A` (the sum of each row, [n,1]), `fill A S`
// (A's sum, in the shape that the values of S say), `dims A` (A's shape, as a shape tensor), `positive A` (those above 0: a size that
// only the values tell), `profile A` (the number of the profile, a row for each of A's).
//
// CONCH_TENSORRT_DOUBLE_TALLY names a file that gets a line per call of enqueueV3: `run` or `capture`, the profile, the inputs' shapes; and
// `done` for each run that the stream has finished.
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <unistd.h>

#include "NvInferRuntime.h"
#include "driver.h"
#include "plan.h"

using namespace nvinfer1;

[[noreturn]] static void unimplemented(const char *function) {
  fprintf(stderr, "the double of TensorRT has no %s\n", function);
  abort();
}

#include "stubs.h"

#ifdef TRT_MAJOR_RTX
#define IS_RTX 1
#else
#define IS_RTX 0
#endif
#if IS_RTX || NV_TENSORRT_MAJOR >= 10
#define SINCE_10 1
#else
#define SINCE_10 0
#endif

namespace {

size_t count_of(const std::vector<int64_t> &dims) {
  size_t count = 1;
  for (int64_t dim : dims) count *= dim < 0 ? 0 : dim;
  return count;
}

// Values of any type, as far as the operations compute.
double value_at(const char *bytes, DataType type, size_t index) {
  switch (type) {
    case DataType::kFLOAT: return reinterpret_cast<const float *>(bytes)[index];
    case DataType::kINT32: return reinterpret_cast<const int32_t *>(bytes)[index];
    default: return static_cast<double>(bytes_of(type) == 8 ? reinterpret_cast<const int64_t *>(bytes)[index] : bytes[index]);
  }
}

void set_value(char *bytes, DataType type, size_t index, double value) {
  switch (type) {
    case DataType::kFLOAT: reinterpret_cast<float *>(bytes)[index] = static_cast<float>(value); break;
    case DataType::kINT32: reinterpret_cast<int32_t *>(bytes)[index] = static_cast<int32_t>(value); break;
    default:
      if (bytes_of(type) == 8)
        reinterpret_cast<int64_t *>(bytes)[index] = static_cast<int64_t>(value);
      else
        bytes[index] = static_cast<char>(value);
  }
}

// A tensor of one run, in pinned memory.
struct Buffer {
  const Tensor *tensor;
  std::vector<int64_t> dims;
  size_t size = 0;
  void *bytes = nullptr;
};

// What a run needs while it is on the stream, and for as long as a graph may run it again.
struct Run {
  const Plan *plan;
  int32_t profile = 0;
  std::map<std::string, Buffer> buffers;
  bool is_captured = false;
  // Set by the thread of the stream.
  std::atomic<bool> is_done{false};

  ~Run() {
    for (auto &[name, buffer] : buffers)
      if (buffer.bytes != nullptr) Driver::get().free(buffer.bytes);
  }

  char *bytes(const std::string &name) { return static_cast<char *>(buffers.at(name).bytes); }

  void compute() {
    for (const Operation &operation : plan->operations) {
      Buffer &out = buffers.at(operation.output);
      Buffer &in = buffers.at(operation.inputs.at(0));
      DataType type = in.tensor->type, to = out.tensor->type;
      char *result = static_cast<char *>(out.bytes), *first = static_cast<char *>(in.bytes);
      size_t count = count_of(in.dims), made = count_of(out.dims);
      if (operation.what == "identity") {
        memcpy(result, first, out.size);
      } else if (operation.what == "add") {
        char *second = bytes(operation.inputs.at(1));
        DataType other = buffers.at(operation.inputs.at(1)).tensor->type;
        for (size_t index = 0; index < made; ++index)
          set_value(result, to, index, value_at(first, type, index) + value_at(second, other, index));
      } else if (operation.what == "rows") {
        size_t rows = in.dims.empty() ? 1 : in.dims[0], width = rows == 0 ? 0 : count / rows;
        for (size_t row = 0; row < rows; ++row) {
          double sum = 0;
          for (size_t index = 0; index < width; ++index) sum += value_at(first, type, row * width + index);
          set_value(result, to, row, sum);
        }
      } else if (operation.what == "fill") {
        double sum = 0;
        for (size_t index = 0; index < count; ++index) sum += value_at(first, type, index);
        for (size_t index = 0; index < made; ++index) set_value(result, to, index, sum);
      } else if (operation.what == "profile") {
        for (size_t index = 0; index < made; ++index) set_value(result, to, index, profile);
      }
    }
    if (plan->delay_us > 0) usleep(plan->delay_us);
  }
};

void tally(const std::string &line) {
  static std::mutex mutex;
  const char *path = getenv("CONCH_TENSORRT_DOUBLE_TALLY");
  if (path == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex);
  std::ofstream(path, std::ios::app) << line << "\n";
}

void compute(void *run) { static_cast<Run *>(run)->compute(); }
void finish(void *run) {
  static_cast<Run *>(run)->is_done = true;
  tally("done");
}

class ContextImpl : public ContextStub {
 public:
  ContextImpl(const Plan *plan, ILogger *logger) : plan_(plan), logger_(logger) {}
#if SINCE_10
  IExecutionContext *getPImpl() noexcept override { return nullptr; }
#endif

  bool setOptimizationProfileAsync(int32_t profile, cudaStream_t) noexcept override {
    if (profile < 0 || profile >= static_cast<int32_t>(plan_->profiles.size())) {
      logger_->log(ILogger::Severity::kERROR, "the double has no such profile");
      return false;
    }
    profile_ = profile;
    return true;
  }

  bool setInputShape(char const *name, Dims const &dims) noexcept override {
    std::vector<int64_t> given = vector_of(dims);
    const auto &shapes = plan_->profiles[profile_].shapes;
    auto range = shapes.find(name);
    if (range != shapes.end())
      for (size_t index = 0; index < given.size(); ++index)
        if (given[index] < range->second.of[0].at(index) || given[index] > range->second.of[2].at(index)) {
          logger_->log(ILogger::Severity::kERROR, (std::string("shape of '") + name + "' is not in the profile").c_str());
          return false;
        }
    shapes_[name] = given;
    return true;
  }

  bool setTensorAddress(char const *name, void *address) noexcept override {
    addresses_[name] = address;
    return plan_->find(name) != nullptr;
  }
  bool setInputTensorAddress(char const *name, void const *address) noexcept override {
    return setTensorAddress(name, const_cast<void *>(address));
  }
  bool setOutputAllocator(char const *name, IOutputAllocator *allocator) noexcept override {
    allocators_[name] = allocator;
    return plan_->find(name) != nullptr;
  }

  int32_t inferShapes(int32_t, char const **) noexcept override {
    for (const Tensor &tensor : plan_->tensors)
      if (tensor.is_input && (is_open(shape_of(tensor)) || (tensor.is_shape && !addresses_[tensor.name]))) return 1;
    return 0;
  }

  Dims getTensorShape(char const *name) const noexcept override {
    const Tensor *tensor = plan_->find(name);
    return dims_of(tensor->is_input ? shape_of(*tensor) : output_shape(*tensor));
  }

  bool enqueueV3(cudaStream_t stream) noexcept override {
    if (plan_->failing == "enqueue") {
      logger_->log(ILogger::Severity::kERROR, "the double refuses to run");
      return false;
    }
    const Driver &driver = Driver::get();
    int status = 0;
    driver.is_capturing(stream, &status);
    if (status != 0 && !plan_->can_capture) {
      logger_->log(ILogger::Severity::kERROR, "the double cannot be captured");
      return false;
    }
    forget_runs();
    auto run = std::make_unique<Run>();
    run->plan = plan_;
    run->profile = profile_;
    run->is_captured = status != 0;
    std::string line = (status != 0 ? "capture " : "run ") + std::to_string(profile_);
    for (const Tensor &tensor : plan_->tensors) {
      Buffer buffer{&tensor, tensor.is_input ? shape_of(tensor) : output_shape(tensor)};
      std::vector<int64_t> filled = buffer.dims;
      if (tensor.vectorized_dim >= 0) {
        int64_t &dim = filled.at(tensor.vectorized_dim);
        dim = (dim + tensor.components - 1) / tensor.components * tensor.components;
      }
      buffer.size = count_of(filled) * bytes_of(tensor.type);
      if (driver.allocate(&buffer.bytes, buffer.size + 1, 0) != 0) return refuse("no pinned memory for " + tensor.name);
      if (tensor.is_input) {
        line += " " + tensor.name + "=";
        for (size_t index = 0; index < buffer.dims.size(); ++index) line += (index ? "," : "") + std::to_string(buffer.dims[index]);
      }
      run->buffers[tensor.name] = buffer;
    }
    tally(line);
    runs_.push_back(std::move(run));
    return put(*runs_.back(), driver, stream);
  }

 private:
  static bool is_open(const std::vector<int64_t> &dims) {
    for (int64_t dim : dims)
      if (dim < 0) return true;
    return false;
  }

  bool put(Run &run, const Driver &driver, cudaStream_t stream) {
    for (auto &[name, buffer] : run.buffers) {
      if (!buffer.tensor->is_input || buffer.size == 0) continue;
      if (addresses_[name] == nullptr) return refuse("no address of " + name);
      if (buffer.tensor->is_shape)
        memcpy(buffer.bytes, addresses_[name], buffer.size);
      else if (driver.copy(address(buffer.bytes), address(addresses_[name]), buffer.size, stream) != 0)
        return refuse("cannot copy " + name);
    }
    for (const Operation &operation : plan_->operations)
      if (operation.what == "positive" && !select_positive(run, operation, driver, stream)) return false;
    if (driver.call(stream, compute, &run) != 0) return refuse("cannot compute");
    for (const Operation &operation : plan_->operations) {
      Buffer &output = run.buffers.at(operation.output);
      if (output.tensor->is_shape) {
        if (operation.what == "dims") write_dims(output, run.buffers.at(operation.inputs.at(0)).dims);
      } else if (!put_output(output, operation, driver, stream)) {
        return false;
      }
    }
    return driver.call(stream, finish, &run) == 0;
  }

  void write_dims(const Buffer &output, const std::vector<int64_t> &dims) {
    auto *values = static_cast<char *>(addresses_[output.tensor->name]);
    for (size_t index = 0; index < dims.size(); ++index) set_value(values, output.tensor->type, index, static_cast<double>(dims[index]));
  }

  bool put_output(const Buffer &output, const Operation &operation, const Driver &driver, cudaStream_t stream) {
    const std::string &name = operation.output;
    // That of `positive` has been allocated.
    if (operation.what != "positive" && allocators_.count(name) != 0 && !allocate_output(output, stream)) return false;
    if (output.size == 0) return true;
    if (addresses_[name] == nullptr) return refuse("no address of " + name);
    if (driver.copy(address(addresses_[name]), address(output.bytes), output.size, stream) != 0) return refuse("cannot copy " + name);
    return true;
  }

  // Has the caller allocate an output, and tells it the shape.
  bool allocate_output(const Buffer &output, cudaStream_t stream) {
    const std::string &name = output.tensor->name;
    IOutputAllocator &allocator = *allocators_.at(name);
#if SINCE_10
    addresses_[name] = allocator.reallocateOutputAsync(name.c_str(), nullptr, output.size, 256, stream);
#else
    (void)stream;
    addresses_[name] = allocator.reallocateOutput(name.c_str(), nullptr, output.size, 256);
#endif
    if (addresses_[name] == nullptr && output.size > 0) return refuse("no memory for " + name);
    allocator.notifyShape(name.c_str(), dims_of(output.dims));
    return true;
  }

  // The size of this output depends on values: as TensorRT does, this waits for them.
  bool select_positive(Run &run, const Operation &operation, const Driver &driver, cudaStream_t stream) {
    if (driver.synchronize(stream) != 0) return refuse("cannot wait");
    Buffer &in = run.buffers.at(operation.inputs.at(0)), &out = run.buffers.at(operation.output);
    std::vector<double> found;
    for (size_t index = 0; index < count_of(in.dims); ++index) {
      double value = value_at(static_cast<char *>(in.bytes), in.tensor->type, index);
      if (value > 0) found.push_back(value);
    }
    driver.free(out.bytes);
    out.bytes = nullptr;
    out.dims = {static_cast<int64_t>(found.size())};
    out.size = found.size() * bytes_of(out.tensor->type);
    if (driver.allocate(&out.bytes, out.size + 1, 0) != 0) return refuse("no pinned memory for " + operation.output);
    for (size_t index = 0; index < found.size(); ++index) set_value(static_cast<char *>(out.bytes), out.tensor->type, index, found[index]);
    if (allocators_.count(operation.output) == 0) return refuse("no allocator of " + operation.output);
    return allocate_output(out, stream);
  }

  bool refuse(const std::string &text) {
    logger_->log(ILogger::Severity::kERROR, ("the double: " + text).c_str());
    return false;
  }

  static uint64_t address(void *memory) { return reinterpret_cast<uint64_t>(memory); }

  std::vector<int64_t> shape_of(const Tensor &input) const {
    auto set = shapes_.find(input.name);
    return set == shapes_.end() ? input.dims : set->second;
  }

  std::vector<int64_t> output_shape(const Tensor &output) const {
    for (const Operation &operation : plan_->operations) {
      if (operation.output != output.name) continue;
      std::vector<int64_t> dims = shape_of(*plan_->find(operation.inputs.at(0)));
      if (operation.what == "rows" || operation.what == "profile") return {dims.at(0), 1};
      if (operation.what == "dims") return {static_cast<int64_t>(dims.size())};
      if (operation.what == "positive") return {-1};
      if (operation.what == "fill") {
        const Tensor *values = plan_->find(operation.inputs.at(1));
        auto found = addresses_.find(values->name);
        size_t count = count_of(shape_of(*values));
        if (found == addresses_.end() || found->second == nullptr) return output.dims;
        std::vector<int64_t> shape;
        for (size_t index = 0; index < count; ++index)
          shape.push_back(static_cast<int64_t>(value_at(static_cast<char *>(found->second), values->type, index)));
        return shape;
      }
      return dims;
    }
    return output.dims;
  }

  void forget_runs() {
    std::vector<std::unique_ptr<Run>> kept;
    for (auto &run : runs_)
      if (run->is_captured || !run->is_done) kept.push_back(std::move(run));
    runs_.swap(kept);
  }

  const Plan *plan_;
  ILogger *logger_;
  int32_t profile_ = 0;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, void *> addresses_;
  std::map<std::string, IOutputAllocator *> allocators_;
  std::vector<std::unique_ptr<Run>> runs_;
};

// TensorRT's classes hold their table of functions in a member, mImpl, that only they set.
class Context : public IExecutionContext {
 public:
  Context(const Plan *plan, ILogger *logger) : context_(plan, logger) { mImpl = &context_; }
  ~Context() noexcept override = default;

 private:
  ContextImpl context_;
};

class EngineImpl : public EngineStub {
 public:
  EngineImpl(Plan plan, ILogger *logger) : plan_(std::move(plan)), logger_(logger) {}
#if SINCE_10
  ICudaEngine *getPImpl() noexcept override { return nullptr; }
  IExecutionContext *createExecutionContext(ExecutionContextAllocationStrategy) noexcept override { return create(); }
#else
  ICudaEngine *getPImpl() noexcept { return nullptr; }
  IExecutionContext *createExecutionContext() noexcept override { return create(); }
#endif
  int32_t getNbIOTensors() const noexcept override { return static_cast<int32_t>(plan_.tensors.size()); }
  char const *getIOTensorName(int32_t index) const noexcept override { return plan_.tensors.at(index).name.c_str(); }
  int32_t getNbOptimizationProfiles() const noexcept override { return static_cast<int32_t>(plan_.profiles.size()); }
  Dims getTensorShape(char const *name) const noexcept override { return dims_of(plan_.find(name)->dims); }
  DataType getTensorDataType(char const *name) const noexcept override { return plan_.find(name)->type; }
  TensorLocation getTensorLocation(char const *name) const noexcept override {
    return plan_.find(name)->is_shape ? TensorLocation::kHOST : TensorLocation::kDEVICE;
  }
  bool isShapeInferenceIO(char const *name) const noexcept override { return plan_.find(name)->is_shape; }
  TensorIOMode getTensorIOMode(char const *name) const noexcept override {
    return plan_.find(name)->is_input ? TensorIOMode::kINPUT : TensorIOMode::kOUTPUT;
  }
  int32_t getTensorComponentsPerElement(char const *name) const noexcept override { return plan_.find(name)->components; }
  TensorFormat getTensorFormat(char const *name) const noexcept override {
    return static_cast<TensorFormat>(plan_.find(name)->format);
  }
  char const *getTensorFormatDesc(char const *name) const noexcept override {
    return plan_.find(name)->format == 0 ? "row-major linear (the double)" : "vectorised (the double)";
  }
  int32_t getTensorVectorizedDim(char const *name) const noexcept override { return plan_.find(name)->vectorized_dim; }
  Dims getProfileShape(char const *name, int32_t profile, OptProfileSelector which) const noexcept override {
    const auto &shapes = plan_.profiles.at(profile).shapes;
    auto found = shapes.find(name);
    return dims_of(found == shapes.end() ? plan_.find(name)->dims : found->second.of[static_cast<int32_t>(which)]);
  }
#if IS_RTX || NV_TENSORRT_MAJOR > 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR >= 11)
  int64_t const *getProfileTensorValuesV2(char const *name, int32_t profile, OptProfileSelector which) const noexcept override {
    const auto &values = plan_.profiles.at(profile).values;
    auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.of[static_cast<int32_t>(which)].data();
  }
#endif
#if !IS_RTX && NV_TENSORRT_MAJOR == 10
  int32_t const *getProfileTensorValues(char const *name, int32_t profile, OptProfileSelector which) const noexcept override {
    return narrow(name, profile, which);
  }
#endif
#if NV_TENSORRT_MAJOR == 8
  int32_t getBindingIndex(char const *name) const noexcept override {
    for (size_t index = 0; index < plan_.tensors.size(); ++index)
      if (plan_.tensors[index].name == name) return static_cast<int32_t>(index);
    return -1;
  }
  int32_t const *getProfileShapeValues(int32_t profile, int32_t index, OptProfileSelector which) const noexcept override {
    return narrow(plan_.tensors.at(index).name.c_str(), profile, which);
  }
#endif

 private:
  int32_t const *narrow(char const *name, int32_t profile, OptProfileSelector which) const {
    const auto &values = plan_.profiles.at(profile).narrow;
    auto found = values.find(name);
    if (found == values.end()) return nullptr;
    return found->second.data() + static_cast<int32_t>(which) * found->second.size() / 3;
  }

  IExecutionContext *create() {
    if (plan_.failing == "context") {
      logger_->log(ILogger::Severity::kERROR, "the double has no memory for a context");
      return nullptr;
    }
    return new Context(&plan_, logger_);
  }

  Plan plan_;
  ILogger *logger_;
};

class Engine : public ICudaEngine {
 public:
  Engine(Plan plan, ILogger *logger) : engine_(std::move(plan), logger) { mImpl = &engine_; }
  ~Engine() noexcept override = default;

 private:
  EngineImpl engine_;
};

class RuntimeImpl : public RuntimeStub {
 public:
  explicit RuntimeImpl(ILogger *logger) : logger_(logger) {}
#if SINCE_10
  IRuntime *getPImpl() noexcept override { return nullptr; }
  nvinfer1::ICudaEngine *deserializeCudaEngine(void const *blob, size_t size) noexcept override { return read(blob, size); }
#else
  nvinfer1::ICudaEngine *deserializeCudaEngine(void const *blob, size_t size, IPluginFactory *) noexcept override { return read(blob, size); }
#endif
  int32_t getNbDLACores() const noexcept override {
    const char *count = getenv("CONCH_TENSORRT_DOUBLE_DLA");
    return count == nullptr ? 0 : atoi(count);
  }
  void setDLACore(int32_t core) noexcept override { tally("dla " + std::to_string(core)); }
  void setEngineHostCodeAllowed(bool allowed) noexcept { allows_host_code_ = allowed; }
  bool getEngineHostCodeAllowed() const noexcept { return allows_host_code_; }

 private:
  nvinfer1::ICudaEngine *read(void const *blob, size_t size) {
    std::string text(static_cast<const char *>(blob), size);
    if (text.rfind("conch-double ", 0) != 0) {
      logger_->log(ILogger::Severity::kERROR, "the double: this is no plan (magic tag does not match)");
      return nullptr;
    }
    Plan plan = parse(text);
    if (plan.major != NV_TENSORRT_MAJOR && !allows_host_code_) {
      std::string why = "the double: the engine plan file is of version " + std::to_string(plan.major) + ", this library of version " +
                        std::to_string(NV_TENSORRT_MAJOR);
      logger_->log(ILogger::Severity::kERROR, why.c_str());
      return nullptr;
    }
    logger_->log(ILogger::Severity::kWARNING, "the double of TensorRT read a plan");
    if (plan.failing == "deserialize") {
      logger_->log(ILogger::Severity::kERROR, "the double: the plan is damaged");
      return nullptr;
    }
    return new Engine(std::move(plan), logger_);
  }

  ILogger *logger_;
  bool allows_host_code_ = false;
};

class Runtime : public IRuntime {
 public:
  explicit Runtime(ILogger *logger) : runtime_(logger) { mImpl = &runtime_; }
  ~Runtime() noexcept override = default;

 private:
  RuntimeImpl runtime_;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int32_t getInferLibVersion() noexcept {
#if SINCE_10
  return NV_TENSORRT_MAJOR * 10000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH;
#else
  return NV_TENSORRT_MAJOR * 1000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH;
#endif
}

EXPORT void *createInferRuntime_INTERNAL(void *logger, int32_t) noexcept { return new Runtime(static_cast<ILogger *>(logger)); }

EXPORT bool initLibNvInferPlugins(void *, char const *) {
  tally("plugins");
  return true;
}
