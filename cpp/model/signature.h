// The arguments of a loaded model: dtypes, shapes and bounds, checked at each call.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../graph/graph.h"
#include "json.h"
#include "operators.h"

namespace fourfold::model {

// A size: a number, a symbol, or an operation of two sizes.
struct Size {
  char operation = '\0';  // '\0' for a number or a symbol, or + - * / %; division and remainder as in Python
  int64_t number = 0;
  size_t symbol = none;
  std::vector<Size> operands;

  static constexpr size_t none = static_cast<size_t>(-1);
};

struct Symbol {
  std::string name;
  int64_t minimum;
  int64_t maximum;
};

struct TensorArgument {
  at::ScalarType dtype;
  std::vector<Size> shape;
};

struct Argument {
  std::string name;
  std::optional<TensorArgument> tensor;
  // For other arguments: a number that may vary (its size, if constrained), or the only value allowed (expected).
  ValueKind kind = ValueKind::tensor;
  std::optional<Size> size;
  c10::IValue expected;
};

class Signature {
 public:
  // symbols: {"s0": {"minimum": 1, "maximum": 512}}; arguments: a list. Throws Refused.
  Signature(const Json& symbols, const Json& arguments, c10::Device device);

  const std::vector<Argument>& arguments() const { return arguments_; }
  // Throws std::invalid_argument with a message that names the argument and the dimension.
  void check(const Values& given) const;
  // Zeros for a tensor argument, whose sizes follow from the others; those that are None are not known. Throws
  // std::invalid_argument.
  at::Tensor zeros(size_t argument, const Values& given) const;
  // For each of these tensor arguments the dimension of a dynamic size that all have, once; nothing if there is not exactly
  // one such size.
  std::optional<std::vector<int64_t>> dimensions_of_streams(const std::vector<size_t>& arguments) const;

 private:
  using Sizes = std::vector<std::optional<int64_t>>;  // by symbol

  Size size_of(const Json& given, int depth = 0) const;
  Argument argument_of(const Json& given) const;
  void check_tensor(const Argument& argument, const c10::IValue& given, Sizes& known) const;
  void check_size(const Size& size, int64_t given, const std::string& what, Sizes& known) const;
  // Empty if it contains an unknown symbol, or on overflow.
  std::optional<int64_t> evaluate(const Size& size, const Sizes& known) const;
  std::string text_of(const Size& size) const;
  // The first dimension of an argument that is this symbol, or "".
  std::string place_of(size_t symbol) const;

  std::vector<Symbol> symbols_;
  std::map<std::string, size_t> index_of_;
  std::vector<Argument> arguments_;
  c10::Device device_;
};

// A boolean, a number, a string or None.
c10::IValue constant_of(const Json& given);
std::string text_of(const c10::IValue& value);

}  // namespace fourfold::model
