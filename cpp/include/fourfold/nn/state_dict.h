// Loads checkpoints that Python saved.
#pragma once

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace fourfold::nn {

namespace detail {

using Entries = std::map<std::string, torch::Tensor>;

[[noreturn]] inline void refuse_file(const std::string& path, const std::string& what) {
  throw std::runtime_error("load_state_dict: expected " + path + " to hold a dict of tensors, as torch.save(" +
                           "dict(model.state_dict()), path) writes it, but " + what);
}

inline Entries read_entries(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    throw std::runtime_error("load_state_dict: expected to read " + path + ", but it can't be opened or read");
  }
  torch::IValue value;
  try {
    value = torch::jit::pickle_load(bytes);
  } catch (const c10::Error& error) {
    refuse_file(path, "torch can't read it. model.state_dict() itself, without dict(), is of a type that libtorch does not "
                      "know. It says: " + std::string(error.what_without_backtrace()));
  }
  if (!value.isGenericDict()) refuse_file(path, "it holds a " + value.tagKind());
  Entries entries;
  for (const auto& entry : value.toGenericDict()) {
    if (!entry.key().isString()) refuse_file(path, "a key of it is a " + entry.key().tagKind());
    if (!entry.value().isTensor()) refuse_file(path, entry.key().toStringRef() + " is a " + entry.value().tagKind());
    entries[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return entries;
}

// A bias of shape (n) may be stored as (1, n), and vice versa: the published tutorials differ.
inline bool same_bias(const std::string& name, const torch::Tensor& a, const torch::Tensor& b) {
  const std::string last = name.substr(name.rfind('.') + 1);
  const auto row = [](const torch::Tensor& t) { return t.dim() == 1 || (t.dim() == 2 && t.size(0) == 1); };
  return last.find("bias") != std::string::npos && row(a) && row(b) && a.numel() == b.numel();
}

inline std::string sizes_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace detail

// Copies a checkpoint that Python saved with torch.save(dict(model.state_dict()), path) into the parameters and buffers
// of the same names; the module keeps its dtypes and devices. Missing, unexpected or differently shaped entries throw a
// std::runtime_error that names them, and nothing is copied.
inline void load_state_dict(torch::nn::Module& module, const std::string& path) {
  const detail::Entries entries = detail::read_entries(path);
  detail::Entries own;
  for (const auto& parameter : module.named_parameters()) own[parameter.key()] = parameter.value();
  for (const auto& buffer : module.named_buffers()) own[buffer.key()] = buffer.value();

  std::string wrong;
  const auto note = [&wrong](const std::string& what) { wrong += (wrong.empty() ? "" : "; ") + what; };
  for (const auto& [name, tensor] : own) {
    const auto entry = entries.find(name);
    if (entry == entries.end()) {
      note(name + " is missing");
    } else if (entry->second.sizes() != tensor.sizes() && !detail::same_bias(name, entry->second, tensor)) {
      note(name + " should have shape " + detail::sizes_of(tensor) + " and has " + detail::sizes_of(entry->second));
    }
  }
  for (const auto& entry : entries) {
    if (own.find(entry.first) == own.end()) note(entry.first + " is none of the module's");
  }
  if (!wrong.empty()) {
    throw std::runtime_error("load_state_dict: expected the entries of " + path + " to be the module's, but " + wrong);
  }

  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : own) tensor.copy_(entries.at(name).reshape(tensor.sizes()));
}

template <typename Impl>
void load_state_dict(const torch::nn::ModuleHolder<Impl>& module, const std::string& path) {
  load_state_dict(*module.ptr(), path);
}

}  // namespace fourfold::nn
