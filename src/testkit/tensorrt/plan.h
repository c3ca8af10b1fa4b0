// Plans of the double: lines of a text.
//
//   conch-double <major>                 the first line; the major version of TensorRT that the plan is for
//   input <name> <type> <dims> [shape]   dims as `-1,16`, `-` for none; a shape tensor lies in host memory
//   output <name> <type> <dims> [shape]
//   format <name> <number> <dim> <n>     nvinfer1::TensorFormat; the dimension that is filled up to a multiple of n
//   profile                              the next optimisation profile begins
//   range <input> <min> <opt> <max>      shapes
//   values <input> <min> <opt> <max>     values of a shape tensor
//   op <output> <what> <inputs...>       see double.cpp
//   fail deserialize|context|enqueue     what TensorRT refuses, after a message in the log
//   capture no                           work that CUDA cannot capture into a graph
//   delay <us>                           for each run, on the stream
#pragma once

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "NvInferRuntime.h"

using nvinfer1::DataType;
using nvinfer1::Dims;

struct Tensor {
  std::string name;
  DataType type;
  std::vector<int64_t> dims;
  bool is_input = false, is_shape = false;
  int32_t format = 0, vectorized_dim = -1, components = 1;
};

struct Range {
  std::vector<int64_t> of[3];
};

struct Profile {
  std::map<std::string, Range> shapes, values;
  std::map<std::string, std::vector<int32_t>> narrow;
};

struct Operation {
  std::string output, what;
  std::vector<std::string> inputs;
};

struct Plan {
  int32_t major = 0;
  std::vector<Tensor> tensors;
  std::vector<Profile> profiles;
  std::vector<Operation> operations;
  std::string failing;
  bool can_capture = true;
  int64_t delay_us = 0;

  const Tensor *find(const std::string &name) const {
    for (const Tensor &tensor : tensors)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
};

inline size_t bytes_of(DataType type) {
  switch (static_cast<int32_t>(type)) {
    case 0: case 3: return 4;
    case 1: case 7: return 2;
    case 8: return 8;
    default: return 1;
  }
}

inline DataType type_of(const std::string &name) {
  static const std::map<std::string, int32_t> numbers = {{"fp32", 0}, {"fp16", 1}, {"int8", 2}, {"int32", 3}, {"bool", 4},
                                                         {"uint8", 5}, {"fp8", 6}, {"bf16", 7}, {"int64", 8}};
  return static_cast<DataType>(numbers.at(name));
}

inline std::vector<int64_t> numbers_of(const std::string &text) {
  std::vector<int64_t> numbers;
  std::stringstream stream(text == "-" ? "" : text);
  for (std::string number; std::getline(stream, number, ',');) numbers.push_back(std::stoll(number));
  return numbers;
}

inline Dims dims_of(const std::vector<int64_t> &numbers) {
  Dims dims{};
  dims.nbDims = static_cast<int32_t>(numbers.size());
  for (size_t index = 0; index < numbers.size(); ++index) dims.d[index] = numbers[index];
  return dims;
}

inline std::vector<int64_t> vector_of(const Dims &dims) {
  std::vector<int64_t> numbers;
  for (int32_t index = 0; index < dims.nbDims; ++index) numbers.push_back(dims.d[index]);
  return numbers;
}

inline Plan parse(const std::string &text) {
  Plan plan;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::stringstream words(line);
    std::string word, name, type, dims, more;
    words >> word;
    if (word == "conch-double") {
      words >> plan.major;
    } else if (word == "input" || word == "output") {
      words >> name >> type >> dims >> more;
      plan.tensors.push_back({name, type_of(type), numbers_of(dims), word == "input", more == "shape"});
    } else if (word == "format") {
      words >> name;
      for (Tensor &tensor : plan.tensors)
        if (tensor.name == name) words >> tensor.format >> tensor.vectorized_dim >> tensor.components;
    } else if (word == "profile") {
      plan.profiles.emplace_back();
    } else if (word == "range" || word == "values") {
      words >> name;
      if (plan.profiles.empty()) plan.profiles.emplace_back();
      Profile &profile = plan.profiles.back();
      Range &range = (word == "range" ? profile.shapes : profile.values)[name];
      for (auto &of : range.of) {
        words >> dims;
        of = numbers_of(dims);
        if (word == "values") profile.narrow[name].insert(profile.narrow[name].end(), of.begin(), of.end());
      }
    } else if (word == "op") {
      Operation operation;
      words >> operation.output >> operation.what;
      while (words >> name) operation.inputs.push_back(name);
      plan.operations.push_back(operation);
    } else if (word == "fail") {
      words >> plan.failing;
    } else if (word == "capture") {
      plan.can_capture = false;
    } else if (word == "delay") {
      words >> plan.delay_us;
    }
  }
  if (plan.profiles.empty()) plan.profiles.emplace_back();
  return plan;
}
