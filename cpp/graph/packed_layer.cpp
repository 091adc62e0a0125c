#include "packed_layer.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "transposed_copy.h"
#include "values.h"

namespace fourfold::graph {
namespace {

constexpr LayerArguments of_lstm{"fourfold::lstm_prepack", 3, 4, 10}, of_gru{"fourfold::gru_prepack", 2, 4, 9};
constexpr LayerArguments of_lltm{"fourfold::lltm_prepack", 3, 2, 8};

at::Tensor packed_layer(const LayerArguments& layer, const torch::jit::Stack& stack) {
  const auto begin = stack.begin() + static_cast<int64_t>(layer.first);
  torch::jit::Stack given(begin, begin + static_cast<int64_t>(layer.count));
  c10::Dispatcher::singleton().findSchemaOrThrow(layer.prepack, "").callBoxed(given);
  return given[0].toTensor();
}

template <const LayerArguments& layer>
void lay_out_layer(torch::jit::Stack& stack, PackedWeights* own) {
  lay_out_input(stack);
  if (own == nullptr || !is_cpu_tensor(stack[0], 3) || !stack[layer.prepacked].isNone()) return;
  int64_t elements = 0;
  for (size_t k = layer.first; k < layer.first + layer.count; ++k) {
    if (stack[k].isTensor()) elements += stack[k].toTensor().numel();
    if (stack[k].isTensor() && stack[k].toTensor().scalar_type() != stack[0].toTensor().scalar_type()) return;
  }
  const at::Tensor packed = own->layer(elements, [&] { return packed_layer(layer, stack); });
  if (packed.defined()) stack[layer.prepacked] = packed;
}

}  // namespace

std::optional<LayerArguments> layer_arguments_of(const std::string& name) {
  if (name == "fourfold::lstm") return of_lstm;
  if (name == "fourfold::gru") return of_gru;
  return name == "fourfold::lltm" ? std::optional(of_lltm) : std::nullopt;
}

LayOut lay_out_of_layer(const std::string& name) {
  if (name == "fourfold::lstm") return lay_out_layer<of_lstm>;
  if (name == "fourfold::gru") return lay_out_layer<of_gru>;
  return name == "fourfold::lltm" ? lay_out_layer<of_lltm> : nullptr;
}

}  // namespace fourfold::graph
