// The files exchanged between tests/test_consumer.py and its programs: dicts of tensors, by torch.save and torch.load.
#pragma once

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

inline torch::IValue read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return torch::jit::pickle_load({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

inline void write(const torch::IValue& value, const std::string& path) {
  const std::vector<char> bytes = torch::jit::pickle_save(value);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

using Dict = c10::Dict<std::string, torch::Tensor>;
