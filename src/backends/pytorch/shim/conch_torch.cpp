// TorchScript behind a C interface: libtorch has none for it. Compiled by scripts/build-torch-shim against the headers of one
// torch, whose version it carries; the backend refuses another (C++ interfaces of torch hold within a minor version).
//
// Tensors cross as torch's own C handles (AtenTensorHandle), which the backend makes, reads and frees by torch's C interface.
// Functions that can fail return NULL, or a text that conch_torch_free_text frees. No exception leaves this file.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/version.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

char out_of_memory[] = "out of memory";

char* text_of(const std::string& message) {
  char* text = strdup(message.c_str());
  return text ? text : out_of_memory;
}

// Runs `work`; what it throws becomes a text.
template <typename Work>
char* guarded(Work work) {
  try {
    work();
    return nullptr;
  } catch (const c10::Error& error) {
    return text_of(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return text_of(error.what());
  } catch (...) {
    return text_of("an exception that is no std::exception");
  }
}

// Torch, the older ones more than the newer, believes a file the shapes of its weights, and would read beyond a weight's memory.
void check_weights(const torch::jit::Module& module) {
  c10::IValue::HashAliasedIValues seen;
  c10::IValue(module._ivalue()).visit([&](const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& weight = value.toTensor();
      if (!weight.defined() || weight.layout() != at::kStrided || !weight.has_storage()) return true;
      const size_t needed = at::detail::computeStorageNbytes(weight.sizes(), weight.strides(), weight.itemsize(), weight.storage_offset());
      if (needed > weight.storage().nbytes()) throw std::runtime_error("a weight has another shape than its data: the file is damaged");
      return true;
    }
    // Values may hold each other in circles.
    return value.isPtrType() && !seen.insert(value).second;
  });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// What the backend and this file share; libtorch/shim.rs has the same.

struct conch_torch_module {
  torch::jit::Module module;
};

// -1: leave as it is.
struct conch_torch_options {
  int32_t inference_mode;
  int32_t optimized_execution;
  int32_t jit_profiling;
  int32_t jit_executor;
  int32_t tensor_fuser;
  int32_t cudnn;
  int32_t cleans_cache;  // of the GPU's memory, after a run
  // Where arguments are brought and results left; -1: arguments stay where they are, results are brought to the CPU.
  int32_t gpu;
};

// A tensor (borrowed); or a list of strings, all bytes one behind the other and the length of each; or None, where both are NULL.
struct conch_torch_input {
  AtenTensorHandle tensor;
  const char* key;  // of a dictionary, else NULL
  const char* text;
  const size_t* lengths;
  size_t count;
};

// An output: a tensor on the CPU, or on the GPU of the run, contiguous, the caller's from here on; or a list of strings as on Triton's wire.
struct conch_torch_output {
  AtenTensorHandle tensor;
  std::string key;
  std::string strings;
  size_t count;
};

struct conch_torch_outputs {
  std::vector<conch_torch_output> outputs;
};

// Read out of this file before it is opened: the number of this interface, which changes with it, and the version of torch whose headers
// this was compiled with.
extern const char conch_torch_shim[];
const char conch_torch_shim[] = "conch-torch-shim 2 for torch " TORCH_VERSION;

void conch_torch_free_text(char* text) {
  if (text != out_of_memory) free(text);
}

// `place`: the number of a GPU, -1 for the CPU, -2 for where the module was saved from.
char* conch_torch_load(const char* path, int32_t inference_mode, int32_t place, conch_torch_module** loaded) {
  return guarded([&] {
    c10::InferenceMode guard(inference_mode != 0);
    std::optional<c10::Device> device;
    if (place == -1) device = c10::Device(c10::kCPU);
    if (place >= 0) device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(place));
    torch::jit::Module module = torch::jit::load(path, device);
    check_weights(module);
    *loaded = new conch_torch_module{std::move(module)};
  });
}

void conch_torch_free_module(conch_torch_module* module) {
  guarded([&] { delete module; });
}

// Arguments of forward, one a line: its name, a tab, its type. `text` is the caller's to free.
char* conch_torch_arguments(conch_torch_module* module, char** text) {
  return guarded([&] {
    std::string lines;
    const auto& arguments = module->module.get_method("forward").function().getSchema().arguments();
    for (size_t index = 0; index < arguments.size(); ++index) {
      if (index == 0 && arguments[0].type()->kind() == c10::TypeKind::ClassType) continue;  // self
      lines += arguments[index].name() + "\t" + arguments[index].type()->str() + "\n";
    }
    *text = text_of(lines);
  });
}

// Once per process, before anything ran on that pool.
char* conch_torch_set_interop_threads(int32_t count) {
  return guarded([&] { at::set_num_interop_threads(count); });
}

}  // extern "C"
#pragma GCC visibility pop

namespace {

using c10::IValue;

std::optional<c10::Device> gpu_of(const conch_torch_options& options) {
  if (options.gpu < 0) return std::nullopt;
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.gpu));
}

IValue value_of(const conch_torch_input& input, const std::optional<c10::Device>& gpu) {
  if (input.tensor) {
    const at::Tensor& tensor = *torch::aot_inductor::tensor_handle_to_tensor_pointer(input.tensor);
    return gpu ? tensor.to(*gpu) : tensor;
  }
  if (!input.lengths) return IValue();
  c10::List<std::string> strings;
  strings.reserve(input.count);
  const char* start = input.text;
  for (size_t index = 0; index < input.count; ++index) {
    strings.push_back(std::string(start, input.lengths[index]));
    start += input.lengths[index];
  }
  return strings;
}

void apply(const conch_torch_options& options) {
  if (options.optimized_execution >= 0) torch::jit::setGraphExecutorOptimize(options.optimized_execution != 0);
  if (options.jit_profiling >= 0) torch::jit::getProfilingMode() = options.jit_profiling != 0;
  if (options.jit_executor >= 0) torch::jit::getExecutorMode() = options.jit_executor != 0;
  if (options.tensor_fuser >= 0) torch::jit::setTensorExprFuserEnabled(options.tensor_fuser != 0);
  if (options.cudnn >= 0) at::globalContext().setUserEnabledCuDNN(options.cudnn != 0);
}

// Throws upstream's words for what is neither a tensor nor a list of strings. `where` is "output" or "output at index N".
void add(std::vector<conch_torch_output>& outputs, const IValue& value, const std::string& key, const std::string& where,
         const std::optional<c10::Device>& gpu) {
  conch_torch_output output{nullptr, key, "", 0};
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    if (!tensor.defined()) throw std::invalid_argument(where + " is an undefined tensor");
    // What shows another tensor's memory conjugated or negated holds other bytes than values.
    if (!gpu || tensor.device() != *gpu) tensor = tensor.to(c10::kCPU);
    tensor = tensor.resolve_conj().resolve_neg().contiguous();
    output.tensor = torch::aot_inductor::new_tensor_handle(std::move(tensor));
  } else if (value.isList()) {
    const auto type = value.toList().elementType();
    if (type->kind() != c10::TypeKind::StringType)
      throw std::invalid_argument(where + " must be of type Tensor or List[str], received List[" + type->str() + "]");
    for (const IValue& element : value.toListRef()) {
      const std::string& text = element.toStringRef();
      if (text.size() > UINT32_MAX) throw std::invalid_argument(where + " has a string of 4 GiB or more");
      uint32_t length = static_cast<uint32_t>(text.size());
      output.strings.append(reinterpret_cast<const char*>(&length), sizeof length);
      output.strings += text;
      ++output.count;
    }
  } else {
    throw std::invalid_argument(where + " must be of type Tensor or List[str], received " + value.type()->str());
  }
  outputs.push_back(std::move(output));
}

void collect(std::vector<conch_torch_output>& outputs, const IValue& result, const std::optional<c10::Device>& gpu) {
  auto at = [](size_t index) { return "output at index " + std::to_string(index); };
  if (result.isTuple()) {
    const auto& elements = result.toTupleRef().elements();
    for (size_t index = 0; index < elements.size(); ++index) add(outputs, elements[index], "", at(index), gpu);
  } else if (result.isTensorList()) {
    const auto& elements = result.toListRef();
    for (size_t index = 0; index < elements.size(); ++index) add(outputs, elements[index], "", at(index), gpu);
  } else if (result.isGenericDict()) {
    for (const auto& entry : result.toGenericDict()) {
      if (!entry.key().isString()) throw std::invalid_argument("output must be a dictionary whose keys are strings");
      add(outputs, entry.value(), entry.key().toStringRef(), "output '" + entry.key().toStringRef() + "'", gpu);
    }
  } else if (result.isTensor() || result.isList()) {
    add(outputs, result, "", "output", gpu);
  } else {
    throw std::invalid_argument(
        "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a Scalar");
  }
}

void free_tensors(std::vector<conch_torch_output>& outputs) {
  for (auto& output : outputs) {
    if (output.tensor) delete torch::aot_inductor::tensor_handle_to_tensor_pointer(output.tensor);
    output.tensor = nullptr;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Runs forward. Inputs are positional, or the entries of the one dictionary that it takes, if `is_dictionary`.
char* conch_torch_forward(conch_torch_module* module, const conch_torch_options* options, const conch_torch_input* inputs,
                          size_t input_count, int32_t is_dictionary, conch_torch_outputs** results) {
  std::vector<conch_torch_output> outputs;
  char* error = guarded([&] {
    apply(*options);
    const std::optional<c10::Device> gpu = gpu_of(*options);
    c10::InferenceMode guard(options->inference_mode != 0);
    torch::NoGradGuard no_grad;
    std::vector<IValue> arguments;
    if (is_dictionary) {
      c10::Dict<std::string, at::Tensor> dictionary;
      for (size_t index = 0; index < input_count; ++index)
        dictionary.insert(inputs[index].key, value_of(inputs[index], gpu).toTensor());
      arguments.emplace_back(std::move(dictionary));
    } else {
      for (size_t index = 0; index < input_count; ++index) arguments.push_back(value_of(inputs[index], gpu));
    }
    collect(outputs, module->module.forward(std::move(arguments)), gpu);
    if (options->cleans_cache) at::accelerator::emptyCache();
    *results = new conch_torch_outputs{std::move(outputs)};
  });
  if (error) free_tensors(outputs);
  return error;
}

size_t conch_torch_output_count(const conch_torch_outputs* results) { return results->outputs.size(); }

// The name of an output that a dictionary returned, else "".
const char* conch_torch_output_key(const conch_torch_outputs* results, size_t index) { return results->outputs[index].key.c_str(); }

// The tensor of an output, which is the caller's to free from here on; NULL if it is a list of strings.
AtenTensorHandle conch_torch_take_tensor(conch_torch_outputs* results, size_t index) {
  return std::exchange(results->outputs[index].tensor, nullptr);
}

// A list of strings, each behind its length, and how many there are.
const char* conch_torch_output_strings(const conch_torch_outputs* results, size_t index, size_t* byte_count, size_t* count) {
  *byte_count = results->outputs[index].strings.size();
  *count = results->outputs[index].count;
  return results->outputs[index].strings.data();
}

void conch_torch_free_outputs(conch_torch_outputs* results) {
  guarded([&] {
    free_tensors(results->outputs);
    delete results;
  });
}

}  // extern "C"
#pragma GCC visibility pop
