// Models that Python saved with fourfold.save: whole graphs with their weights, in one file in safetensors' format. Link
// fourfold::model, which compiles the runner against the program's own libtorch.
//
//   const fourfold::Model model = fourfold::load("model.ff");
//   const std::vector<c10::IValue> results = model({tokens, state});
//   const at::Tensor logits = results[0].toTensor();
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fourfold {

// A file that can't be loaded. what() says what is wrong with it, or what to change.
class LoadError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LoadOptions {
  // Where weights and constants go, and on which the model runs; none: the CPU.
  std::optional<c10::Device> device;
  // Namespaces of operators besides aten, prims and fourfold that the file may call. Their operators run with the process's rights,
  // so name only libraries whose operators are safe with any arguments, or files that you trust.
  std::vector<std::string> allow;
  // What runs programs where the Python package compiles loop nests, as fourfold_program_generate() takes it.
  int32_t generator = 1;
};

// A loaded model. Copies share it. Calls compute no gradients; any number of threads may call a model that has no state, one that
// changes its buffers is called by one thread at a time.
class Model {
 public:
  struct Implementation;

  explicit Model(std::shared_ptr<const Implementation> implementation) : implementation_(std::move(implementation)) {}

  // Takes the exported program's arguments and gives its results, both as leaves in the order of Python's pytrees: positional ones
  // first, then by name. Tensors, numbers, booleans, strings and None. Tensors that the model was exported to change are changed
  // in place. Throws std::invalid_argument for arguments of another dtype, shape or device, and what torch's operators throw.
  std::vector<c10::IValue> operator()(std::vector<c10::IValue> arguments) const;

  // The names of the arguments, in order, and how many results there are.
  std::vector<std::string> arguments() const;
  size_t results() const;
  // Parameters, buffers and constants by the names of the module that was exported, in the model's own memory: what is written
  // there, later calls read.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
  // Of those, one; throws std::out_of_range for another name.
  at::Tensor tensor(const std::string& name) const;
  // The graph as the file holds it, and the structure of Python's arguments and results, both in JSON.
  const std::string& graph() const;
  const std::string& structure() const;

 private:
  std::shared_ptr<const Implementation> implementation_;
};

// Reads a file and checks all of it: offsets and shapes, programs, the operators' names and arguments. Weights stay in the file's
// memory, which is mapped, so that loading takes the time of checking: replace such a file, don't write into it. Runs nothing of the
// file. Throws LoadError.
Model load(const std::string& path, const LoadOptions& options = {});

}  // namespace fourfold
