// TorchScript by itself: pytorch MODEL ROWS. `forward` takes FP32 [n,64] and makes FP32 [n,10]. Compiled against the headers of the torch
// that it is linked with.

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/serialization/import.h>

#include <vector>

#include "loop.h"

namespace {

constexpr size_t kFeatures = 64, kClasses = 10;
torch::jit::Module model;
std::vector<at::Tensor> inputs;

void Call(size_t first, size_t count, char* answers) {
  c10::InferenceMode mode;
  for (size_t row = 0; row < count; row++) {
    at::Tensor made = model.forward({inputs[first + row]}).toTensor();
    memcpy(answers + row * kClasses * 4, made.data_ptr(), kClasses * 4);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) fail(argv[0], "MODEL ROWS");
  at::set_num_threads(1);
  model = torch::jit::load(argv[1]);
  model.eval();
  size_t size;
  char* rows = content_of(argv[2], &size);
  for (size_t row = 0; row < size / (kFeatures * 4); row++)
    inputs.push_back(at::from_blob(rows + row * kFeatures * 4, {1, kFeatures}, at::kFloat));
  return attend(Call, inputs.size(), kClasses * 4);
}
