// The arguments of a loaded model: their dtypes, shapes and bounds, checked at each call.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph.h"
#include "json.h"
#include "operators.h"

namespace fourfold::model {

// A size: a number, a symbol, or arithmetic of such.
struct Size {
  char operation = '\0';  // none: a number or a symbol; or + - * / % of two sizes, division and remainder as Python's
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
  // Of others, a number that differs from call to call, or what it has to be.
  ValueKind kind = ValueKind::tensor;
  std::optional<Size> size;
  c10::IValue expected;
};

class Signature {
 public:
  // symbols: {"s0": {"minimum": 1, "maximum": 512}}; arguments: a list. Throws Refused.
  Signature(const Json& symbols, const Json& arguments, c10::Device device);

  const std::vector<Argument>& arguments() const { return arguments_; }
  // Throws std::invalid_argument in a sentence that names the argument and the dimension.
  void check(const Values& given) const;

 private:
  using Sizes = std::vector<std::optional<int64_t>>;  // by symbol

  Size size_of(const Json& given, int depth = 0) const;
  Argument argument_of(const Json& given) const;
  void check_tensor(const Argument& argument, const c10::IValue& given, Sizes& known) const;
  void check_size(const Size& size, int64_t given, const std::string& what, Sizes& known) const;
  // Nothing where a symbol of it is not known yet, or a number doesn't fit.
  std::optional<int64_t> evaluate(const Size& size, const Sizes& known) const;
  std::string text_of(const Size& size) const;

  std::vector<Symbol> symbols_;
  std::map<std::string, size_t> index_of_;
  std::vector<Argument> arguments_;
  c10::Device device_;
};

// A boolean, a number, a string or nothing.
c10::IValue constant_of(const Json& given);
std::string text_of(const c10::IValue& value);

}  // namespace fourfold::model
