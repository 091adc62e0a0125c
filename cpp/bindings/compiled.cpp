// fourfold.Compiled for Python: a compiled function's forward and backward graph under one autograd node. It replaces
// AOTAutograd's wrappers, whose overhead exceeds the time of small graphs. Only for graphs without mutation, aliasing
// or tensor subclasses.
#include <Python.h>

#include <fourfold/autograd.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "graph.h"
#include "held.h"
#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {
namespace {

using gradients::any_defined;
using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Shared by the forward and the backward of one compiled function.
struct Function {
  std::shared_ptr<const CompiledGraph> forward;
  Held make_backward;                // called once, at the first backward; None without a gradient
  std::vector<bool> differentiable;  // for each output, whether it has a gradient
  std::vector<bool> wanted;          // for each input, whether the backward computes its gradient
  Held again;                        // called with inputs and gradients, returns differentiable gradients; or None
  std::shared_ptr<const CompiledGraph> backward;
  std::mutex mutex;

  bool has_backward() const { return make_backward.get() != Py_None; }
  bool is_twice_differentiable() const { return again.get() != Py_None; }

  std::shared_ptr<const CompiledGraph> get_backward() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (backward != nullptr) return backward;
    }
    const pybind11::gil_scoped_acquire held;
    const pybind11::object made = pybind11::reinterpret_borrow<pybind11::object>(make_backward.get())();
    const std::lock_guard<std::mutex> lock(mutex);
    backward = graph_of(made.ptr());
    return backward;
  }
};

constexpr const char* forward_mode =
    "compiled function: expected inputs without tangents where any requires a gradient; for forward-mode differentiation "
    "call torch.func.jvp within the compiled function, or give it inputs of which none requires a gradient";
constexpr const char* twice = "torch.compile with aot_autograd does not currently support double backward";

// torch holds nodes by shared_ptr up to 2.12, by intrusive_ptr from 2.13.
template <typename AnyNode = torch::autograd::Node>
auto make_error() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, AnyNode>) {
    return c10::make_intrusive<torch::autograd::Error>(twice);
  } else {
    return std::make_shared<torch::autograd::Error>(twice);
  }
}

struct Node final : torch::autograd::Node {
  explicit Node(std::shared_ptr<Function> function) : function(std::move(function)) {}

  std::shared_ptr<Function> function;
  std::vector<SavedVariable> tensors;
  std::vector<bool> outputs;  // for each tensor, whether it is an output of this node
  std::vector<c10::IValue> numbers;
  std::vector<SavedVariable> inputs;    // the function's tensor inputs, if it is twice differentiable
  std::vector<c10::IValue> originals;  // likewise all inputs: numbers, and None in place of tensors

  std::string name() const override { return "CompiledFunctionBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& tensor : tensors) tensor.reset_data();
    for (SavedVariable& input : inputs) input.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    if (!any_defined(grads)) return variable_list(num_outputs());
    if (at::GradMode::is_enabled() && function->is_twice_differentiable()) return differentiate_again(std::move(grads));
    return without_second(differentiate(*function, unpack(), complete(std::move(grads))));
  }

  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override {
    args.collect(reinterpret_cast<int64_t>(function.get()));
    for (size_t k = 0; k < tensors.size(); ++k) args.collect(tensors[k], outputs[k]);
    for (const c10::IValue& number : numbers) args.collect(number, /*nested=*/true);
  }

  variable_list apply_with_saved(const variable_list& grads, torch::autograd::SwapSavedVariables& saved) override {
    for (SavedVariable& tensor : tensors) saved.before(tensor);
    Values args = unpack();
    std::vector<c10::TypePtr> types;
    for (const c10::IValue& arg : args) types.push_back(arg.isTensor() ? c10::TensorType::get() : arg.type());
    // An undefined gradient means zeros, whose shape is known only here.
    variable_list all = complete(variable_list(grads));
    const auto call = [function = function](variable_list given, std::vector<c10::IValue> kept) {
      return differentiate(*function, std::move(kept), std::move(given));
    };
    namespace compiled = torch::dynamo::autograd;
    const auto& python = compiled::getPyCompilerInterface();
    const std::string bound = python->bind_function(saved.get_py_compiler(), name(), call, types, /*is_custom_function=*/true);
    const auto metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    variable_list results =
        python->call_function(saved.get_py_compiler(), "apply_functional", bound, all, args, metadata);
    for (SavedVariable& tensor : tensors) saved.after(tensor);
    return results;
  }

 private:
  // The backward's inputs: the saved numbers, the saved tensors, and the gradients of the differentiable outputs.
  static variable_list differentiate(Function& function, Values kept, variable_list grads) {
    const auto backward = function.get_backward();
    for (at::Tensor& grad : grads) kept.emplace_back(std::move(grad));
    Values given;
    {
      // Releases the GIL if it is held (compiled autograd holds it): a program may wait for its nest, which Python
      // compiles.
      std::optional<pybind11::gil_scoped_release> released;
      if (PyGILState_Check() != 0) released.emplace();
      given = backward->run(std::move(kept));
    }
    TORCH_INTERNAL_ASSERT(given.size() == function.wanted.size());
    variable_list results(given.size());
    for (size_t k = 0; k < given.size(); ++k) {
      if (function.wanted[k] && given[k].isTensor()) results[k] = std::move(given[k]).toTensor();
    }
    return results;
  }

  variable_list differentiate_again(variable_list grads) {
    Values given = originals;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t k = 0, tensor = 0; k < given.size(); ++k) {
        if (given[k].isNone()) given[k] = inputs[tensor++].unpack();
      }
    }
    Values gradients;
    for (at::Tensor& grad : grads) gradients.push_back(grad.defined() ? c10::IValue(std::move(grad)) : c10::IValue());
    const pybind11::gil_scoped_acquire held;
    const auto taken = [](const Values& values) { return pybind11::reinterpret_steal<pybind11::object>(tuple_of(values)); };
    const pybind11::object found = pybind11::handle(function->again.get())(taken(given), taken(gradients));
    variable_list results;
    for (const auto gradient : found) {
      const c10::IValue value = value_of(gradient.ptr());
      results.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
    return results;
  }

  variable_list complete(variable_list grads) const {
    for (size_t k = 0; k < grads.size(); ++k) {
      if (!grads[k].defined()) grads[k] = input_metadata(k).zeros_like();
    }
    return grads;
  }

  Values unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Values values;
    values.reserve(numbers.size() + tensors.size() + function->differentiable.size());
    values.insert(values.end(), numbers.begin(), numbers.end());
    for (SavedVariable& tensor : tensors) values.emplace_back(tensor.unpack(getptr()));
    return values;
  }

  // With create_graph=True the gradients get a node that raises an error when it is differentiated.
  static variable_list without_second(variable_list results) {
    if (!at::GradMode::is_enabled()) return results;
    for (at::Tensor& result : results) {
      if (result.defined() && torch::autograd::isDifferentiableType(result.scalar_type())) {
        torch::autograd::set_history(result, make_error());
      }
    }
    return results;
  }
};

template <typename AnyNode = Node>
auto make_node(std::shared_ptr<Function> function) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, AnyNode>) {
    return c10::make_intrusive<AnyNode>(std::move(function));
  } else {
    return std::shared_ptr<AnyNode>(new AnyNode(std::move(function)), [](AnyNode* node) { deleteNode(node); });
  }
}

// Whether `tensor` is one of the first `count` values.
bool is_output(const at::Tensor& tensor, const Values& values, size_t count) {
  for (size_t k = 0; k < count; ++k) {
    if (values[k].isTensor() && values[k].toTensor().is_same(tensor)) return true;
  }
  return false;
}

// A saved tensor may share an output's memory, such as a loop's states. They share a version counter, so that autograd
// detects in-place changes of the output.
void share_versions(const Values& values, size_t outputs) {
  for (size_t k = 0; k < outputs; ++k) {
    if (!values[k].isTensor()) continue;
    const at::Tensor& output = values[k].toTensor();
    for (size_t other = outputs; other < values.size(); ++other) {
      if (!values[other].isTensor() || !values[other].toTensor().is_alias_of(output)) continue;
      output.unsafeGetTensorImpl()->set_version_counter(values[other].toTensor().unsafeGetTensorImpl()->version_counter());
    }
  }
}

// Sets the history of the differentiable outputs, saves the other values, and reduces `values` to the outputs.
void record(const std::shared_ptr<Function>& function, const Values& inputs, Values& values) {
  const size_t outputs = function->differentiable.size();
  const auto node = make_node(function);
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    edges.push_back(function->wanted[k] ? torch::autograd::impl::gradient_edge(inputs[k].toTensor()) : Edge());
  }
  node->set_next_edges(std::move(edges));
  for (size_t k = 0; k < outputs; ++k) {
    if (function->differentiable[k]) torch::autograd::set_history(values[k].toTensor(), node);
  }
  node->tensors.reserve(values.size() - outputs);
  for (size_t k = outputs; k < values.size(); ++k) {
    if (values[k].isTensor()) {
      node->outputs.push_back(is_output(values[k].toTensor(), values, outputs));
      node->tensors.emplace_back(values[k].toTensor(), node->outputs.back());
    } else {
      node->numbers.push_back(std::move(values[k]));
    }
  }
  if (function->is_twice_differentiable()) {
    for (const c10::IValue& input : inputs) {
      node->originals.push_back(input.isTensor() ? c10::IValue() : input);
      if (input.isTensor()) node->inputs.emplace_back(input.toTensor(), /*is_output=*/false);
    }
  }
  share_versions(values, outputs);
  values.resize(outputs);
}

// Compiled(forward, make_backward, differentiable, wanted, again): called with the graph's inputs, returns a tuple of
// its outputs.
struct Compiled {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<Function>* function;
};

PyObject* call_compiled(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<Function>& function = *reinterpret_cast<Compiled*>(callable)->function;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  TORCH_CHECK_TYPE(names == nullptr && count == function->wanted.size(), "expected ",
                   std::to_string(function->wanted.size()), " arguments without names, but got ", std::to_string(count));
  Values inputs;
  inputs.reserve(count);
  for (size_t k = 0; k < count; ++k) inputs.push_back(value_of(arguments[k]));
  const bool carries = std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
    return input.isTensor() && has_tangent(input.toTensor());
  });
  TORCH_CHECK_NOT_IMPLEMENTED(!carries || !function->has_backward(), forward_mode);
  Values values;
  {
    const pybind11::gil_scoped_release released;
    std::optional<at::NoGradGuard> no_grad;
    if (carries) no_grad.emplace();
    values = function->forward->run(inputs, /*records=*/carries);
    if (function->has_backward()) record(function, inputs, values);
  }
  return tuple_of(values);
  END_HANDLE_TH_ERRORS
}

int init_compiled(PyObject* made, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  Compiled& self = *reinterpret_cast<Compiled*>(made);
  TORCH_CHECK_TYPE(self.function == nullptr, "compiled function: expected to be made once");
  PyObject *forward = nullptr, *backward = nullptr, *differentiable = nullptr, *wanted = nullptr, *again = Py_None;
  if (!PyArg_ParseTuple(given, "OOOO|O", &forward, &backward, &differentiable, &wanted, &again)) return -1;
  self.function = new std::shared_ptr<Function>(
      new Function{graph_of(forward), Held(backward), pybind11::handle(differentiable).cast<std::vector<bool>>(),
                   pybind11::handle(wanted).cast<std::vector<bool>>(), Held(again), nullptr, {}});
  self.vectorcall = call_compiled;
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void dealloc_compiled(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  delete reinterpret_cast<Compiled*>(made)->function;
  type->tp_free(made);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_compiled_type() {
  return make_vectorcall_type<Compiled>(
      "fourfold.Compiled", "A compiled function, and its gradient.", init_compiled, dealloc_compiled);
}

}  // namespace fourfold::bindings
