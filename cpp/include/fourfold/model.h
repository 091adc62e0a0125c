// Runs models that Python saved with fourfold.save: whole graphs with their weights, in one file in the safetensors
// format. Link fourfold::model, which compiles the runner against the program's own libtorch.
//
//   const fourfold::Model model = fourfold::load("model.ff");
//   const std::vector<c10::IValue> results = model({tokens, state});
//   const at::Tensor logits = results[0].toTensor();
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fourfold {

// A file can't be loaded. what() gives the reason, or what to change.
class LoadError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LoadOptions {
  // The device that holds weights and constants and runs the model. Default: the CPU.
  std::optional<c10::Device> device;
  // Operator namespaces that the file may call besides aten, prims and fourfold. Their operators run with the process's
  // rights: allow only libraries whose operators are safe with any arguments, or load only files that you trust.
  std::vector<std::string> allow;
  // How programs run if the Python package compiles loop nests: see fourfold_program_generate().
  int32_t generator = 1;
};

// A loaded model. Copies share its memory. Calls compute no gradients. Any number of threads may call a model without
// mutable state; a model that changes its buffers may be called by one thread at a time.
class Model {
 public:
  struct Implementation;

  explicit Model(std::shared_ptr<const Implementation> implementation) : implementation_(std::move(implementation)) {}

  // Takes the exported program's arguments and returns its results, both flattened as Python's pytrees: positional
  // arguments first, then keyword arguments. Leaves are tensors, numbers, booleans, strings and None. Tensors that the
  // exported program mutates are modified in place. Throws std::invalid_argument for arguments with another dtype,
  // shape or device, and passes on exceptions of torch's operators.
  std::vector<c10::IValue> operator()(std::vector<c10::IValue> arguments) const;

  // The names of the arguments, in order, and the number of results.
  std::vector<std::string> arguments() const;
  size_t results() const;
  // The names of parameters, buffers and constants in the exported module.
  std::vector<std::string> tensor_names() const;
  // These tensors by name. They share the model's memory: later calls read what you write there. Taking a weight ends its
  // packing: products with it are slower from then on.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
  // One of them. Throws std::out_of_range for an unknown name.
  at::Tensor tensor(const std::string& name) const;
  // Of a stream: an argument's index, and that of the result that it takes in the next call, or -1 for an argument that
  // is changed in place. Empty if the model was saved without.
  const std::vector<std::pair<size_t, int64_t>>& state() const;
  // The file's graph, and the pytree structure of Python's arguments and results, both as JSON.
  const std::string& graph() const;
  const std::string& structure() const;

 private:
  friend class Stream;

  std::shared_ptr<const Implementation> implementation_;
};

// Calls of a model in order, such as frames of sound. The arguments that were saved as its state take results of the
// call before; a call takes the others, and returns the other results. The state is the stream's own: it shares no memory
// with arguments and results. Streams of one model are independent, but for buffers that the model changes.
class Stream {
 public:
  // first: the state at the beginning, by the arguments' names, copied; zeros by default. Throws std::invalid_argument for
  // a model that was saved without its state, and for other names.
  explicit Stream(Model model, const std::map<std::string, at::Tensor>& first = {});

  // Throws as the model does, and std::invalid_argument if sizes of the state don't follow from the arguments'. After an
  // exception the state is that of before, except for what the model changes in place. Calls wait for each other.
  std::vector<c10::IValue> operator()(std::vector<c10::IValue> inputs);

  // The names of a call's arguments, in order.
  std::vector<std::string> arguments() const;

  // Returns to the beginning.
  void reset();
  // So do some streams of a batch. streams: bool (batch). dim: the dimension of each state that counts them; without it,
  // that of the one dynamic size that all states have. Throws std::invalid_argument for another size.
  void reset(const at::Tensor& streams);
  void reset(const at::Tensor& streams, int64_t dim);
  void reset(const at::Tensor& streams, const std::map<std::string, int64_t>& dims);
  // A copy, by the arguments' names; empty at the beginning.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  size_t place_of(const std::string& name) const;
  std::vector<at::Tensor> begun(std::vector<c10::IValue> given) const;
  std::vector<c10::IValue> sorted(
      const std::vector<c10::IValue>& results, std::vector<c10::IValue> taken, std::vector<at::Tensor> state);
  void restart(const at::Tensor& streams, const std::vector<int64_t>& dims);

  Model model_;
  std::unique_ptr<std::mutex> mutex_;
  std::vector<at::Tensor> first_;  // undefined for zeros
  std::vector<at::Tensor> state_;
};

// Reads a file and checks all of it: offsets and shapes, programs, the operators' names and arguments. It runs nothing
// from the file. Weights are memory-mapped, so loading takes only as long as the checks: replace a loaded file, don't
// write into it. Throws LoadError.
Model load(const std::string& path, const LoadOptions& options = {});

// Keeps up to so many bytes of freed tensors of 128 KiB and more for later calls of models: the system would clear new pages
// in each call, which takes a quarter of a convolutional model's time. The first call replaces torch's CPU allocator by one
// that passes on to it what no model allocates. Programs keep none by default; Python keeps up to 1 GiB.
void keep_memory(size_t bytes);
// Frees what is kept and returns its size in bytes.
size_t release_memory();

}  // namespace fourfold
