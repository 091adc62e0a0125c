#include "guards.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "../graph/values.h"
#include "../system/text.h"

namespace fourfold::model {
namespace {

using c10::FunctionSchema;
using torch::jit::Stack;

// An operator's arguments by name.
class Arguments {
 public:
  Arguments(const FunctionSchema& schema, const Stack& stack) : schema_(schema), stack_(stack) {}

  // None if the schema has no such argument.
  c10::IValue operator[](std::string_view name) const {
    const auto& all = schema_.arguments();
    for (size_t k = 0; k < all.size(); ++k) {
      if (all[k].name() == name) return stack_[k];
    }
    return {};
  }
  // Undefined if there is no such tensor.
  at::Tensor tensor(std::string_view name) const {
    const c10::IValue value = (*this)[name];
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }
  const std::string& name() const { return schema_.name(); }

 private:
  const FunctionSchema& schema_;
  const Stack& stack_;
};

void expect_elements(const Arguments& given, const char* argument, int64_t expected) {
  const at::Tensor tensor = given.tensor(argument);
  TORCH_CHECK_VALUE(!tensor.defined() || tensor.numel() == expected, given.name(), ": expected ", argument, " to have ",
                    std::to_string(expected), " elements, but got ", std::to_string(tensor.numel()));
}

void expect_contiguous(const Arguments& given, const char* argument) {
  const at::Tensor tensor = given.tensor(argument);
  TORCH_CHECK_VALUE(!tensor.defined() || tensor.is_contiguous(), given.name(), ": expected ", argument,
                    " to be contiguous, but got the strides ", text_of(tensor.strides()));
}

// Weights and statistics need one element per channel.
void check_batch_norm(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor input = given.tensor("input");
  TORCH_CHECK_VALUE(input.dim() >= 2, given.name(), ": expected input to have a dimension of channels, but got ",
                    std::to_string(input.dim()), " dimensions");
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) expect_elements(given, name, input.size(1));
}

// g needs one element per slice of v.
void check_weight_norm(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor v = given.tensor("v");
  const int64_t dim = given["dim"].toInt();
  TORCH_CHECK_VALUE(v.dim() > 0 && (dim == 0 || dim == v.dim() - 1), given.name(),
                    ": expected dim to be the first or the last of v, but got ", std::to_string(dim));
  expect_elements(given, "g", v.size(dim));
  expect_contiguous(given, "v");
  expect_contiguous(given, "g");
}

// Without output_size the scales determine the result's size; with one they must be consistent with it.
void check_scales(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const c10::IValue size = given["output_size"];
  if (!size.isIntList()) return;
  const std::vector<int64_t> sizes = size.toIntVector();
  const at::Tensor input = given.tensor(given["self"].isNone() ? "input" : "self");
  std::vector<c10::IValue> scales{given["scales_d"], given["scales_h"], given["scales_w"]};
  if (!given["scales"].isNone()) scales.back() = given["scales"];
  if (const c10::IValue factors = given["scale_factors"]; factors.isDoubleList()) {
    const std::vector<double> list = factors.toDoubleVector();
    scales.assign(list.begin(), list.end());
  }
  for (size_t k = 1; k <= sizes.size() && k <= scales.size() && static_cast<int64_t>(k) <= input.dim(); ++k) {
    const c10::IValue& scale = scales[scales.size() - k];
    if (scale.isNone()) continue;
    const auto expected = static_cast<double>(sizes[sizes.size() - k]);
    const double found = std::floor(scale.toDouble() * static_cast<double>(input.size(-static_cast<int64_t>(k))));
    TORCH_CHECK_VALUE(found == expected, given.name(), ": expected scales of ", system::format_double(expected),
                      " elements, but got ", system::format_double(scale.toDouble()), " for ",
                      std::to_string(input.size(-static_cast<int64_t>(k))), " elements");
  }
}

void check_segments(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  TORCH_CHECK_VALUE(!given["unsafe"].toBool(), given.name(), ": expected unsafe to be False");
  TORCH_CHECK_VALUE(given["offsets"].isNone(), given.name(), ": expected lengths rather than offsets");
}

// The sum of the repeats is the result's size.
void check_repeats(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  constexpr double most = 1ULL << 53;
  const double sum = given.tensor("repeats").sum(at::kDouble).item<double>();
  TORCH_CHECK_VALUE(sum < most, given.name(), ": expected repeats with a sum below 2^53, but got ", system::format_double(sum));
}

void check_attention(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor key = given.tensor("key"), value = given.tensor("value");
  TORCH_CHECK_VALUE(key.dim() >= 2 && value.dim() >= 2 && key.size(-2) == value.size(-2), given.name(),
                    ": expected key and value of the same length, but got the shapes ", text_of(key.sizes()), " and ",
                    text_of(value.sizes()));
}

void check_transform(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const int64_t count = given.tensor("self").dim();
  std::vector<bool> is_taken(static_cast<size_t>(count));
  const std::vector<int64_t> dims = given["dim"].toIntVector();
  for (const int64_t dim : dims) {
    TORCH_CHECK_VALUE(dim >= 0 && dim < count, given.name(), ": expected dims of a tensor of ", std::to_string(count),
                      " dimensions, but got ", std::to_string(dim));
    const auto place = static_cast<size_t>(dim);
    TORCH_CHECK_VALUE(!is_taken[place], given.name(), ": expected each dim once, but got ", text_of(dims));
    is_taken[place] = true;
  }
}

void check_sampler(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const int64_t interpolation = given["interpolation_mode"].toInt(), padding = given["padding_mode"].toInt();
  const int64_t most = given.tensor("input").dim() == 5 ? 1 : 2;
  TORCH_CHECK_VALUE(interpolation >= 0 && interpolation <= most && padding >= 0 && padding <= 2, given.name(),
                    ": expected modes that torch has, but got interpolation_mode ", std::to_string(interpolation),
                    " and padding_mode ", std::to_string(padding));
}

// The smallest integer divided by -1 overflows, which traps on x86.
void check_quotient(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor dividend = given.tensor("self");
  const c10::IValue divisor = given["other"];
  const at::ScalarType type = dividend.scalar_type();
  if ((type != at::kInt && type != at::kLong) || given["rounding_mode"].isNone() || given["rounding_mode"].toStringRef() != "trunc") return;
  const bool is_tensor = divisor.isTensor();
  if (is_tensor ? !at::isIntegralType(divisor.toTensor().scalar_type(), true) : !divisor.toScalar().isIntegral(true)) return;
  const bool has_minus_one = is_tensor ? divisor.toTensor().eq(-1).any().item<bool>() : divisor.toScalar().toLong() == -1;
  if (!has_minus_one) return;
  const int64_t least = type == at::kInt ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  const at::Tensor is_least = dividend.eq(least);
  const at::Tensor overflows = is_tensor ? is_least.logical_and(divisor.toTensor().eq(-1)) : is_least;
  TORCH_CHECK_VALUE(!overflows.any().item<bool>(), given.name(), ": expected quotients that ", type, " holds, but got ",
                    std::to_string(least), " / -1");
}

// Packed sequences: batch_sizes must be positive, non-increasing, and sum to the number of rows.
void check_packed(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor data = given.tensor("data"), sizes = given.tensor("batch_sizes");
  const bool fits = sizes.scalar_type() == at::kLong && sizes.dim() == 1 && sizes.numel() > 0 && sizes.is_contiguous() && data.dim() == 2;
  TORCH_CHECK_VALUE(fits && sizes.is_cpu(), given.name(), ": expected batch_sizes of one contiguous dimension of int64 on the CPU");
  const auto* const first = sizes.const_data_ptr<int64_t>();
  int64_t sum = 0;
  for (int64_t k = 0; k < sizes.numel(); ++k) {
    const bool follows = first[k] > 0 && first[k] <= (k == 0 ? data.size(0) : first[k - 1]);
    TORCH_CHECK_VALUE(follows, given.name(), ": expected batch_sizes that are positive and don't increase, but got ",
                      text_of(at::IntArrayRef(first, static_cast<size_t>(sizes.numel()))));
    sum += first[k];
  }
  TORCH_CHECK_VALUE(sum == data.size(0), given.name(), ": expected batch_sizes with the sum ", std::to_string(data.size(0)),
                    ", but got ", std::to_string(sum));
}

// The samples are positions of windows, relative to the range of valid positions.
void check_samples(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor samples = given.tensor("random_samples");
  const bool are_inside = samples.ge(0).logical_and(samples.lt(1)).all().item<bool>();
  TORCH_CHECK_VALUE(are_inside, given.name(), ": expected random_samples of at least 0 and below 1");
}

// Checks the sizes of each layer's weights, which oneDNN's kernels don't check.
void check_lstm(const FunctionSchema& schema, const Stack& stack) {
  const Arguments given(schema, stack);
  const at::Tensor input = given.tensor("input");
  const std::vector<at::Tensor> states = given["hx"].toTensorVector(), weights = given["params"].toTensorVector();
  const int64_t layers = given["num_layers"].toInt(), directions = given["bidirectional"].toBool() ? 2 : 1;
  TORCH_CHECK_VALUE(states.size() == 2 && layers > 0 && input.dim() == 3, given.name(), ": expected 3 dimensions of input, two states and a layer");
  const int64_t batch = input.size(given["batch_first"].toBool() ? 0 : 1);
  for (const at::Tensor& state : states) {
    TORCH_CHECK_VALUE(state.dim() == 3 && state.size(0) == layers * directions && state.size(1) == batch, given.name(),
                      ": expected states of shape (", std::to_string(layers * directions), ", ", std::to_string(batch),
                      ", size), but got ", text_of(state.sizes()));
  }
  const int64_t outputs = states[0].size(2), hidden = states[1].size(2);
  const bool has_biases = given["has_biases"].toBool();
  const size_t each = 2 + (has_biases ? 2 : 0) + (outputs != hidden ? 1 : 0);
  TORCH_CHECK_VALUE(weights.size() == each * static_cast<size_t>(layers * directions), given.name(), ": expected ",
                    std::to_string(each), " weights for each layer and direction, but got ", std::to_string(weights.size()));
  for (size_t k = 0; k < weights.size(); ++k) {
    const bool is_first = k / each < static_cast<size_t>(directions);
    const int64_t inputs = is_first ? input.size(2) : directions * outputs;
    std::vector<int64_t> expected;
    switch (k % each) {
      case 0: expected = {4 * hidden, inputs}; break;
      case 1: expected = {4 * hidden, outputs}; break;
      default: expected = {4 * hidden};
    }
    if (k % each >= 2 && (!has_biases || k % each == 4)) expected = {outputs, hidden};
    TORCH_CHECK_VALUE(weights[k].sizes() == at::IntArrayRef(expected), given.name(), ": expected weight ", std::to_string(k),
                      " of shape ", text_of(expected), ", but got ", text_of(weights[k].sizes()));
  }
}

bool has_rounding(const c10::OperatorHandle& handle) {
  const auto& arguments = handle.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& one) { return one.name() == "rounding_mode"; });
}

}  // namespace

Guard guard_of(const c10::OperatorHandle& handle) {
  const std::string& whole = handle.operator_name().name;
  constexpr std::string_view space = "aten::";
  if (whole.compare(0, space.size(), space) != 0) return nullptr;
  const std::string_view name = std::string_view(whole).substr(space.size());
  const auto has = [name](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const std::string& overload = handle.operator_name().overload_name;
  if (has("native_batch_norm")) return &check_batch_norm;
  if (name == "_weight_norm_interface") return &check_weight_norm;
  if (has("upsample_")) return &check_scales;
  if (name == "segment_reduce") return &check_segments;
  if (name == "repeat_interleave" && overload != "self_int") return &check_repeats;
  if (has("fractional_max_pool")) return &check_samples;
  if (name == "scaled_dot_product_attention") return &check_attention;
  if (name == "_fft_r2c" || name == "_fft_c2r" || name == "_fft_c2c") return &check_transform;
  if (has("grid_sampler")) return &check_sampler;
  if (name == "div" || name == "divide") return has_rounding(handle) ? &check_quotient : nullptr;
  if (name == "lstm" && overload == "input") return &check_lstm;
  if (overload == "data" && (name == "lstm" || name == "gru" || has("rnn_"))) return &check_packed;
  return nullptr;
}

}  // namespace fourfold::model
