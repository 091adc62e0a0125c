// Makes and calls every module of fourfold/nn.h for the cases, which come from Python with its parameters.
#pragma once

#include "files.h"

#include <fourfold/nn.h>

#include <stdexcept>

namespace layers {

using torch::Tensor;
namespace ours = fourfold::nn;
using ours::PackedSequence;
using Pair = std::tuple<Tensor, Tensor>;

struct Case {
  c10::impl::GenericDict dict;

  torch::IValue operator[](const std::string& key) const {
    const auto found = dict.find(key);
    return found == dict.end() ? torch::IValue() : found->value();
  }
  int64_t size(const std::string& key) const { return (*this)[key].toInt(); }
  bool flag(const std::string& key) const { return (*this)[key].toBool(); }
  std::string text(const std::string& key) const { return (*this)[key].toStringRef(); }
  Tensor tensor(const std::string& key) const {
    const torch::IValue value = (*this)[key];
    return value.isTensor() ? value.toTensor() : Tensor();
  }
  std::optional<Tensor> optional(const std::string& key) const {
    return (*this)[key].isTensor() ? std::optional(tensor(key)) : std::nullopt;
  }
  std::optional<Pair> state() const {
    return tensor("h_0").defined() ? std::optional<Pair>({tensor("h_0"), tensor("c_0")}) : std::nullopt;
  }
  PackedSequence pack(const Tensor& data) const {
    return PackedSequence(data, tensor("batch_sizes"), tensor("sorted_indices"), tensor("unsorted_indices"));
  }
  std::optional<PackedSequence> packed_reset() const {
    return tensor("reset").defined() ? std::optional(pack(tensor("reset"))) : std::nullopt;
  }
};

template <typename Options>
Options layer_options(const Case& c) {
  return Options(c.size("input_size"), c.size("hidden_size"))
      .num_layers(c.size("num_layers")).bias(c.flag("bias")).batch_first(c.flag("batch_first"))
      .dropout(c["dropout"].toDouble()).bidirectional(c.flag("bidirectional"));
}

template <typename Options>
Options cell_options(const Case& c) {
  return Options(c.size("input_size"), c.size("hidden_size")).bias(c.flag("bias"));
}

inline void keep_state(Dict& results, const Pair& state) {
  results.insert("h_n", std::get<0>(state));
  results.insert("c_n", std::get<1>(state));
}
inline void keep_state(Dict& results, const Tensor& state) { results.insert("h_n", state); }

template <typename Layer, typename State>
void call_layer(Layer& layer, const Case& c, State state, Dict& results) {
  if (c.tensor("batch_sizes").defined()) {
    auto [output, last] = layer->forward_with_packed_input(c.pack(c.tensor("input")), state, c.packed_reset());
    results.insert("output", output.data());
    keep_state(results, last);
  } else {
    auto [output, last] = layer->forward(c.tensor("input"), state, c.optional("reset"));
    results.insert("output", output);
    keep_state(results, last);
  }
}

// The parameters as initialised after torch::manual_seed(0), their names, and the results with the parameters that
// Python saved.
template <typename Module, typename Call>
Dict results_of(Module module, const Case& c, const Call& call) {
  Dict results;
  for (const auto& parameter : module->named_parameters()) {
    results.insert("initial." + parameter.key(), parameter.value().detach().clone());
  }
  module->to(c.tensor("input").scalar_type());
  ours::load_state_dict(module, c.text("state_dict"));
  if (!c.flag("train")) module->eval();
  const auto copy = std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone());
  torch::manual_seed(1);
  call(Module(copy), results);
  Tensor sum = torch::zeros({});
  for (const auto& entry : results) {
    if (entry.value().requires_grad()) sum = sum + entry.value().pow(2).sum();
  }
  sum.backward();
  for (const auto& parameter : copy->named_parameters()) results.insert("grad." + parameter.key(), parameter.value().grad());
  for (const auto& entry : results) results.insert_or_assign(entry.key(), entry.value().detach());
  return results;
}

inline Dict run(const Case& c) {
  const std::string kind = c.text("kind");
  torch::manual_seed(0);
  if (kind == "LLTM") {
    return results_of(ours::LLTM(layer_options<ours::LLTMOptions>(c)), c,
                      [&](auto layer, Dict& results) { call_layer(layer, c, c.state(), results); });
  }
  if (kind == "LSTM") {
    return results_of(ours::LSTM(layer_options<ours::LSTMOptions>(c)), c,
                      [&](auto layer, Dict& results) { call_layer(layer, c, c.state(), results); });
  }
  if (kind == "GRU") {
    return results_of(ours::GRU(layer_options<ours::GRUOptions>(c)), c,
                      [&](auto layer, Dict& results) { call_layer(layer, c, c.tensor("h_0"), results); });
  }
  const auto step = [&](auto cell, Dict& results) { keep_state(results, cell->forward(c.tensor("input"), c.state())); };
  if (kind == "LLTMCell") return results_of(ours::LLTMCell(cell_options<ours::LLTMCellOptions>(c)), c, step);
  if (kind == "LSTMCell") return results_of(ours::LSTMCell(cell_options<ours::LSTMCellOptions>(c)), c, step);
  if (kind == "GRUCell") {
    return results_of(ours::GRUCell(cell_options<ours::GRUCellOptions>(c)), c, [&](auto cell, Dict& results) {
      keep_state(results, cell->forward(c.tensor("input"), c.tensor("h_0")));
    });
  }
  if (kind != "MLP") throw std::runtime_error("no such module: " + kind);
  const torch::IValue list = c["sizes"];
  std::vector<int64_t> sizes;
  for (const torch::IValue& size : list.toListRef()) sizes.push_back(size.toInt());
  auto options = c.flag("tutorial") ? ours::MLPOptions(sizes[0], sizes[1], sizes[2]) : ours::MLPOptions(sizes);
  options.bias(c.flag("bias")).activation(c.text("activation"));
  return results_of(ours::MLP(options), c,
                    [&](auto mlp, Dict& results) { results.insert("output", mlp->forward(c.tensor("input"))); });
}

// Runs each module of a list of cases, and writes its results.
inline void run_layers(const std::string& cases, const std::string& results) {
  c10::List<Dict> all;
  const torch::IValue list = read(cases);
  for (const torch::IValue& one : list.toListRef()) all.push_back(run({one.toGenericDict()}));
  write(all, results);
}

}  // namespace layers
