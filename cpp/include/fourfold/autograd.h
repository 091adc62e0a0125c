// Gradients of fourfold's operators for programs on torch's C++ API. Include this in one file, link libfourfold, and
// call fourfold::enable_gradients() before the first forward call. `import fourfold` does this by itself.
//
// libfourfold uses only torch's stable ABI, which has no autograd; this header is compiled against the torch that the
// program runs with. One boxed kernel serves all operators, by the rules of fourfold/gradient_rule.h.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <fourfold/gradient_rule.h>
#include <fourfold/library.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fourfold {
namespace gradients {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;

// Calls f with each tensor of an argument; an omitted tensor is undefined.
template <typename F>
void for_each_tensor(const IValue& value, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!value.isList()) return f(Tensor());
  for (const IValue& element : value.toListRef()) f(element.isTensor() ? element.toTensor() : Tensor());
}

inline IValue optional(Tensor&& tensor) { return tensor.defined() ? IValue(std::move(tensor)) : IValue(); }

inline bool has_tangent(const Tensor& tensor) { return tensor.defined() && tensor._fw_grad(/*level=*/0).defined(); }

inline bool any_defined(const variable_list& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined(); });
}

inline void call_backward(const Rule& rule, Stack& stack) try {
  bool differentiable = false;
  for (const IValue& value : stack) {
    for_each_tensor(value, [&](const Tensor& t) {
      differentiable |= t.defined() && ((t.requires_grad() && at::GradMode::is_enabled()) || has_tangent(t));
    });
  }
  // The backward operator's own autograd kernel computes its derivative.
  if (differentiable) return rule.backward->callBoxed(stack);
  const at::AutoDispatchBelowAutograd guard;
  rule.backward->callBoxed(stack);
} catch (const std::runtime_error& error) {
  const std::string said = error.what();
  if (said.rfind(rule.name + "_backward: ", 0) == 0) throw c10::ValueError(said);  // libfourfold rejected an argument
  throw;
}

// The gradient of αx + βy. kept: α and β. Autograd sums over broadcast dimensions and converts to the argument's dtype.
inline variable_list scale(const Tensor& grad, const Stack& kept, const std::vector<bool>& mask) {
  variable_list results(mask.size());
  for (size_t k = 0; k < mask.size(); ++k) {
    const double factor = kept[k].toDouble();
    if (mask[k]) results[k] = factor == 1 ? grad : grad.mul(factor);
  }
  return results;
}

// The gradients that the mask selects. kept: the backward's arguments; gradients and mask are filled in here.
inline variable_list differentiate(const Rule& rule, variable_list&& grads, Stack kept, const std::vector<bool>& mask) {
  variable_list results(mask.size());
  if (!any_defined(grads)) return results;
  if (!rule.backward) return scale(grads[0], kept, mask);
  for (size_t k = 0; k < kept.size(); ++k) {
    const Source& source = rule.sources[k];
    if (source.kind == Source::gradient) kept[k] = optional(std::move(grads[source.place]));
    if (source.kind == Source::mask) kept[k] = mask;
  }
  call_backward(rule, kept);
  size_t k = 0;
  for (const IValue& result : kept) {
    for_each_tensor(result, [&](const Tensor& gradient) {
      if (mask.at(k)) results[k] = gradient;
      ++k;
    });
  }
  return results;
}

struct Node final : torch::autograd::Node {
  explicit Node(const Rule& rule) : rule(rule) {}

  const Rule& rule;
  std::vector<SavedVariable> tensors;  // the backward's tensor arguments, in order; lists are flattened
  std::vector<int64_t> lengths;        // for each tensor argument the length of its list, or -1
  std::vector<IValue> constants;

  std::string name() const override { return "fourfold_" + rule.name + "Backward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& tensor : tensors) tensor.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    if (!any_defined(grads)) return variable_list(num_outputs());
    return differentiate(rule, std::move(grads), unpack(), mask());
  }

  // Compiled autograd records a function call and its arguments.
  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override {
    args.collect(rule.name);
    args.collect(tensors, /*is_output=*/false);
    args.collect(lengths);
    for (const IValue& constant : constants) args.collect(constant, /*nested=*/true);
  }

  variable_list apply_with_saved(const variable_list& grads, torch::autograd::SwapSavedVariables& saved) override {
    saved.before(tensors);
    Stack args = unpack();
    args.emplace_back(mask());
    std::vector<c10::TypePtr> types;
    for (const IValue& arg : args) types.push_back(arg.isTensor() ? c10::TensorType::get() : arg.type());
    const auto call = [&rule = rule](variable_list grads, Stack args) {
      const std::vector<bool> mask = args.back().toBoolList().vec();
      args.pop_back();
      return differentiate(rule, std::move(grads), std::move(args), mask);
    };
    namespace compiled = torch::dynamo::autograd;
    const auto& python = compiled::getPyCompilerInterface();
    const std::string bound =
        python->bind_function(saved.get_py_compiler(), name(), call, types, /*is_custom_function=*/true);
    const auto metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    variable_list results =
        python->call_function(saved.get_py_compiler(), "apply_functional", bound, grads, args, metadata);
    saved.after(tensors);
    return results;
  }

 private:
  // Which gradients this call of the engine needs.
  std::vector<bool> mask() const {
    std::vector<bool> result(num_outputs());
    for (size_t k = 0; k < result.size(); ++k) result[k] = task_should_compute_output(k);
    return result;
  }

  Stack unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!rule.backward) return constants;
    auto tensor = tensors.cbegin();
    auto length = lengths.cbegin();
    auto constant = constants.cbegin();
    Stack stack(rule.sources.size());
    for (size_t k = 0; k < stack.size(); ++k) {
      const auto kind = rule.sources[k].kind;
      if (kind == Source::constant) stack[k] = *constant++;
      if (kind != Source::tensor && kind != Source::output) continue;
      int64_t left = *length++;
      if (left < 0) {
        stack[k] = optional((tensor++)->unpack());
        continue;
      }
      const auto& type = rule.backward->schema().arguments()[k].type();
      c10::impl::GenericList list(type->expectRef<c10::ListType>().getElementType());
      for (; left > 0; --left) list.push_back(optional((tensor++)->unpack()));
      stack[k] = std::move(list);
    }
    return stack;
  }
};

// torch holds nodes by shared_ptr up to 2.12, by intrusive_ptr from 2.13.
template <typename AnyNode>
auto make_node(const Rule& rule) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, AnyNode>) {
    return c10::make_intrusive<AnyNode>(rule);
  } else {
    return std::shared_ptr<AnyNode>(new AnyNode(rule), [](AnyNode* node) { deleteNode(node); });
  }
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const Rule& rule) : rule_(rule) {}

  void operator()(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const IValue* arguments = stack->data() + (stack->size() - rule_.arguments);
    bool recorded = false, dual = false;
    for (const size_t k : rule_.differentiable) {
      for_each_tensor(arguments[k], [&](const Tensor& t) {
        recorded |= t.defined() && t.requires_grad();
        dual |= has_tangent(t);
      });
    }
    if (dual) return carry_tangents(op, stack);
    if (!recorded || !at::GradMode::is_enabled()) return below(op, keys, stack);

    const auto node = make_node<Node>(rule_);
    torch::autograd::edge_list edges;
    edges.reserve(rule_.differentiable.size());
    for (const size_t k : rule_.differentiable) {
      for_each_tensor(arguments[k], [&](const Tensor& t) {
        edges.push_back(t.defined() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
      });
    }
    node->set_next_edges(std::move(edges));
    keep_arguments(*node, arguments);
    below(op, keys, stack);
    const IValue* outputs = stack->data() + (stack->size() - rule_.outputs);
    keep_outputs(*node, outputs);
    for (size_t k = 0; k < rule_.differentiable_outputs; ++k) {
      const Tensor& output = outputs[k].toTensor();  // axpby's may hold integers
      if (torch::autograd::isDifferentiableType(output.scalar_type())) torch::autograd::set_history(output, node);
    }
  }

 private:
  static void below(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const at::AutoDispatchBelowAutograd guard;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

  // Only the Python package has forward-mode derivatives. It registers them under the device-independent key.
  void carry_tangents(const OperatorHandle& op, Stack* stack) const {
    TORCH_CHECK_NOT_IMPLEMENTED(
        op.hasKernelForDispatchKey(DispatchKey::Autograd), rule_.name,
        ": forward-mode derivatives need fourfold's Python package");
    op.callBoxedForDispatchKey(DispatchKey::Autograd, *stack);
  }

  void keep_arguments(Node& node, const IValue* arguments) const {
    if (!rule_.backward) {
      node.constants.assign(arguments + rule_.differentiable.size(), arguments + 2 * rule_.differentiable.size());
      return;
    }
    node.tensors.reserve(rule_.sources.size());
    for (const Source& source : rule_.sources) {
      if (source.kind == Source::constant) node.constants.push_back(arguments[source.place]);
      if (source.kind != Source::tensor) continue;
      const IValue& argument = arguments[source.place];
      node.lengths.push_back(argument.isList() ? static_cast<int64_t>(argument.toListRef().size()) : -1);
      for_each_tensor(argument, [&](const Tensor& t) { node.tensors.emplace_back(t, /*is_output=*/false); });
    }
  }

  // Differentiable outputs are copied, so that users can modify them in place, as torch.nn's layers allow.
  void keep_outputs(Node& node, const IValue* outputs) const {
    for (const Source& source : rule_.sources) {
      if (source.kind != Source::output) continue;
      const Tensor& output = outputs[source.place].toTensor();
      const at::AutoDispatchBelowAutograd guard;
      const bool result = source.place < rule_.differentiable_outputs;
      node.tensors.emplace_back(result ? output.clone() : output, /*is_output=*/false);
      node.lengths.push_back(-1);
    }
  }

  const Rule& rule_;
};

inline std::vector<std::string> operator_names() {
  const std::string facts = fourfold_build_facts(), key = "\noperators=";
  const size_t begin = facts.find(key) + key.size();
  const std::string list = facts.substr(begin, facts.find('\n', begin) - begin);
  std::vector<std::string> names;
  for (size_t at = 0; at < list.size(); at += names.back().size() + 1) {
    names.push_back(list.substr(at, list.find(',', at) - at));
  }
  return names;
}

inline std::string minor_version(uint64_t version) {
  return std::to_string(version >> 56) + "." + std::to_string(version >> 48 & 255);
}

// Another torch may have every symbol, but another memory layout of its classes.
inline void expect_same_torch() {
  const std::string built = minor_version(TORCH_ABI_VERSION), loaded = minor_version(aoti_torch_abi_version());
  if (built == loaded) return;
  throw std::runtime_error("fourfold's gradients were built for torch " + built + ", but this is torch " + loaded +
                           "; compile the file that includes fourfold/autograd.h against this torch");
}

inline bool register_all() {
  expect_same_torch();
  if (const char* error = fourfold_other_copy_error()) throw std::runtime_error(error);
  const DispatchKey keys[] = {DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA};
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<torch::Library>& libraries = *new std::vector<torch::Library>;  // never freed: registrations stay
  for (const DispatchKey key : keys) {
    libraries.emplace_back(torch::Library::IMPL, "fourfold", key, __FILE__, __LINE__);
  }
  libraries.emplace_back(torch::Library::IMPL, "fourfold", DispatchKey::Autograd, __FILE__, __LINE__);
  for (const std::string& name : operator_names()) {
    const OperatorHandle forward = dispatcher.findSchemaOrThrow(("fourfold::" + name).c_str(), "");
    if (forward.hasKernelForDispatchKey(keys[0])) continue;  // registered by another library of this process
    const Rule& rule = *new Rule(rule_of(name));             // never freed: a graph may outlive any library
    for (size_t k = 0; k < std::size(keys); ++k) {
      libraries[k].impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(rule)));
    }
    if (rule.backward && !rule.backward->hasKernelForDispatchKey(DispatchKey::Autograd)) {
      // Only the Python package has second derivatives; without it they raise an error.
      libraries.back().impl((name + "_backward").c_str(), torch::autograd::autogradNotImplementedFallback());
    }
  }
  return true;
}

}  // namespace gradients

// Registers the operators' gradients. Call it once libfourfold is loaded; further calls do nothing. Throws
// std::runtime_error if this process runs another torch version than this file was compiled with.
inline void enable_gradients() {
  static const bool registered = gradients::register_all();
  static_cast<void>(registered);
}

}  // namespace fourfold
