#include "signature.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "../system/text.h"
#include "tensor_file.h"

namespace fourfold::model {
namespace {

constexpr int64_t most = std::numeric_limits<int64_t>::max();
constexpr int deepest_size = 30;

[[noreturn]] void refuse_argument(const std::string& what, const std::string& expected, const std::string& given) {
  throw std::invalid_argument("model: expected " + what + " to be " + expected + ", but got " + given);
}

std::optional<int64_t> computed(char operation, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (operation) {
    case '+': return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case '-': return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case '*': return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    default: break;
  }
  if (b <= 0) return std::nullopt;
  const int64_t quotient = a / b - (a % b < 0 ? 1 : 0);
  return operation == '/' ? quotient : a - quotient * b;
}

bool is_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isString() || b.isString()) return a.isString() && b.isString() && a.toStringRef() == b.toStringRef();
  if (a.isBool() || b.isBool()) return a.isBool() && b.isBool() && a.toBool() == b.toBool();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  return a.isDouble() && b.isDouble() && (a.toDouble() == b.toDouble() || (std::isnan(a.toDouble()) && std::isnan(b.toDouble())));
}

}  // namespace

c10::IValue constant_of(const Json& given) {
  switch (given.kind()) {
    case Json::Kind::null: return {};
    case Json::Kind::boolean: return given.as_bool("");
    case Json::Kind::integer: return given.as_integer("");
    case Json::Kind::number: return given.as_number("");
    case Json::Kind::string: return given.as_string("");
    case Json::Kind::object: {
      const std::string& name = given.at("float", "a constant").as_string("a float");
      if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
      if (name == "inf" || name == "-inf") return name == "inf" ? HUGE_VAL : -HUGE_VAL;
      break;
    }
    default: break;
  }
  throw Refused("expected a constant to be null, a boolean, a number or a string");
}

std::string text_of(const c10::IValue& value) {
  if (value.isTensor()) return "a tensor";
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isString()) return "'" + value.toStringRef() + "'";
  return value.isDouble() ? system::format_double(value.toDouble()) : value.tagKind();
}

Signature::Signature(const Json& symbols, const Json& arguments, c10::Device device) : device_(device) {
  for (const auto& [name, range] : symbols.as_object("symbols")) {
    index_of_[name] = symbols_.size();
    const Json& maximum = range.at("maximum", "a symbol");
    symbols_.push_back({name, range.at("minimum", "a symbol").as_integer("a minimum"),
                        maximum.is(Json::Kind::null) ? most : maximum.as_integer("a maximum")});
  }
  for (const Json& argument : arguments.as_list("arguments")) arguments_.push_back(argument_of(argument));
}

Size Signature::size_of(const Json& given, int depth) const {
  Size size;
  if (given.is(Json::Kind::integer)) {
    size.number = given.as_integer("a size");
  } else if (given.is(Json::Kind::string)) {
    const auto found = index_of_.find(given.as_string("a size"));
    if (found == index_of_.end()) throw Refused("expected a size to be a symbol, but got " + shown(given.as_string("a size")));
    size.symbol = found->second;
  } else {
    const auto& parts = given.as_list("a size");
    const std::string operation = parts.empty() ? "" : parts[0].as_string("the operation of a size");
    const bool is_known = operation.size() == 1 && std::string_view("+-*/%").find(operation) != std::string_view::npos;
    if (parts.size() != 3 || !is_known || depth > deepest_size) throw Refused("expected a size to be an operation of two sizes");
    size.operation = operation[0];
    size.operands = {size_of(parts[1], depth + 1), size_of(parts[2], depth + 1)};
  }
  return size;
}

Argument Signature::argument_of(const Json& given) const {
  Argument made{given.at("name", "an argument").as_string("a name"), {}, ValueKind::tensor, {}, {}};
  if (const Json* dtype = given.find("dtype")) {
    made.tensor = TensorArgument{dtype_of(dtype->as_string("a dtype")), {}};
    for (const Json& size : given.at("shape", "an argument").as_list("a shape")) made.tensor->shape.push_back(size_of(size));
  } else if (const Json* number = given.find("number")) {
    const std::string& name = number->as_string("a kind of number");
    if (name != "integer" && name != "float") throw Refused("expected a number to be integer or float, but got " + shown(name));
    made.kind = name == "integer" ? ValueKind::integer : ValueKind::floating;
    if (const Json* size = given.find("size")) made.size = size_of(*size);
  } else {
    made.kind = ValueKind::other;
    made.expected = constant_of(given.at("constant", "an argument"));
  }
  return made;
}

std::string Signature::text_of(const Size& size) const {
  if (size.operation == '\0') return size.symbol == Size::none ? std::to_string(size.number) : symbols_[size.symbol].name;
  const std::string sign = size.operation == '/' ? "//" : std::string(1, size.operation);
  return "(" + text_of(size.operands[0]) + " " + sign + " " + text_of(size.operands[1]) + ")";
}

std::string Signature::place_of(size_t symbol) const {
  for (const Argument& argument : arguments_) {
    if (!argument.tensor.has_value()) continue;
    const auto& shape = argument.tensor->shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      const bool is_it = shape[d].operation == '\0' && shape[d].symbol == symbol;
      if (is_it) return "dimension " + std::to_string(d) + " of " + argument.name;
    }
  }
  return "";
}

std::optional<int64_t> Signature::evaluate(const Size& size, const Sizes& known) const {
  if (size.operation == '\0') return size.symbol == Size::none ? std::optional(size.number) : known[size.symbol];
  const auto a = evaluate(size.operands[0], known), b = evaluate(size.operands[1], known);
  return a.has_value() && b.has_value() ? computed(size.operation, *a, *b) : std::nullopt;
}

void Signature::check_size(const Size& size, int64_t given, const std::string& what, Sizes& known) const {
  if (const auto found = evaluate(size, known)) {
    if (*found == given) return;
    const bool is_number = size.operation == '\0' && size.symbol == Size::none;
    const std::string place = size.operation == '\0' && !is_number ? place_of(size.symbol) : "";
    const std::string which = place.empty() || place == what ? text_of(size) : place;
    refuse_argument(what, (is_number ? "" : which + " = ") + std::to_string(*found), std::to_string(given));
  }
  // Solves for one unknown symbol in sums, differences and products.
  const Size* rest = &size;
  int64_t value = given;
  while (rest->operation == '+' || rest->operation == '-' || rest->operation == '*') {
    const auto a = evaluate(rest->operands[0], known), b = evaluate(rest->operands[1], known);
    if (a.has_value() == b.has_value()) return;  // two unknown symbols: left to the checks of the graph's operators
    const int64_t other = a.has_value() ? *a : *b;
    const bool divides = rest->operation == '*';
    if (divides && (other == 0 || (other != -1 && value % other != 0))) {
      refuse_argument(what, text_of(size) + ", a multiple of " + std::to_string(other), std::to_string(given));
    }
    const bool is_difference = rest->operation == '-';
    const auto next = divides && other == -1 ? computed('-', 0, value)
                      : divides      ? std::optional(value / other)
                      : !is_difference ? computed('-', value, other)
                      : a.has_value() ? computed('-', other, value) : computed('+', value, other);
    if (!next.has_value()) return;
    value = *next;
    rest = &rest->operands[a.has_value() ? 1 : 0];
  }
  if (rest->symbol == Size::none) return;
  const Symbol& symbol = symbols_[rest->symbol];
  if (value < symbol.minimum || value > symbol.maximum) {
    const std::string range = symbol.maximum == most ? "at least " + std::to_string(symbol.minimum)
                                                     : "between " + std::to_string(symbol.minimum) + " and " +
                                                           std::to_string(symbol.maximum);
    const std::string which = size.operation == '\0' ? what : symbol.name + " in " + what + " = " + text_of(size);
    refuse_argument(which, range, std::to_string(value));
  }
  known[rest->symbol] = value;
}

void Signature::check_tensor(const Argument& argument, const c10::IValue& given, Sizes& known) const {
  const TensorArgument& expected = *argument.tensor;
  if (!given.isTensor() || !given.toTensor().defined()) refuse_argument(argument.name, "a tensor", model::text_of(given));
  const at::Tensor& tensor = given.toTensor();
  if (tensor.layout() != at::kStrided) refuse_argument(argument.name, "a strided tensor", c10::str(tensor.layout()));
  if (tensor.scalar_type() != expected.dtype) {
    refuse_argument(argument.name, name_of(expected.dtype), name_of(tensor.scalar_type()));
  }
  const bool is_there =
      tensor.device().type() == device_.type() && (!device_.has_index() || device_.index() == tensor.device().index());
  if (!is_there) {
    refuse_argument(argument.name, "on " + device_.str() + ", where the model is", tensor.device().str() +
                    "; move the tensor, or load the file with that device");
  }
  if (tensor.dim() != static_cast<int64_t>(expected.shape.size())) {
    refuse_argument(argument.name, "of " + std::to_string(expected.shape.size()) + " dimensions", "a shape of " +
                    std::to_string(tensor.dim()));
  }
  for (size_t d = 0; d < expected.shape.size(); ++d) {
    check_size(expected.shape[d], tensor.size(static_cast<int64_t>(d)), "dimension " + std::to_string(d) + " of " + argument.name,
               known);
  }
}

at::Tensor Signature::zeros(size_t argument, const Values& given) const {
  Sizes known(symbols_.size());
  for (size_t k = 0; k < given.size(); ++k) {
    if (arguments_[k].tensor.has_value() && !given[k].isNone()) check_tensor(arguments_[k], given[k], known);
  }
  const Argument& made = arguments_[argument];
  std::vector<int64_t> shape;
  for (const Size& size : made.tensor->shape) {
    const auto found = evaluate(size, known);
    if (!found.has_value()) refuse_argument("the size " + text_of(size) + " of " + made.name, "known from the other arguments", "no size; begin the stream with this state");
    shape.push_back(*found);
  }
  return at::zeros(shape, at::TensorOptions().dtype(made.tensor->dtype).device(device_));
}

std::optional<std::vector<int64_t>> Signature::dimensions_of_streams(const std::vector<size_t>& arguments) const {
  std::optional<std::vector<int64_t>> found;
  for (size_t symbol = 0; symbol < symbols_.size(); ++symbol) {
    std::vector<int64_t> dims;
    for (const size_t argument : arguments) {
      const auto& shape = arguments_[argument].tensor->shape;
      const auto is_it = [&](const Size& size) { return size.operation == '\0' && size.symbol == symbol; };
      if (std::count_if(shape.begin(), shape.end(), is_it) != 1) break;
      dims.push_back(std::find_if(shape.begin(), shape.end(), is_it) - shape.begin());
    }
    if (dims.size() != arguments.size()) continue;
    if (found.has_value()) return std::nullopt;
    found = std::move(dims);
  }
  return found;
}

void Signature::check(const Values& given) const {
  if (given.size() != arguments_.size()) {
    throw std::invalid_argument("model: expected " + std::to_string(arguments_.size()) + " arguments, but got " +
                                std::to_string(given.size()));
  }
  Sizes known(symbols_.size());
  for (size_t k = 0; k < given.size(); ++k) {
    const Argument& argument = arguments_[k];
    if (argument.tensor.has_value()) {
      check_tensor(argument, given[k], known);
    } else if (argument.kind == ValueKind::integer) {
      if (!given[k].isInt()) refuse_argument(argument.name, "an integer", model::text_of(given[k]));
      if (argument.size.has_value()) check_size(*argument.size, given[k].toInt(), argument.name, known);
    } else if (argument.kind == ValueKind::floating) {
      if (!given[k].isDouble()) refuse_argument(argument.name, "a float", model::text_of(given[k]));
    } else if (!is_same(given[k], argument.expected)) {
      refuse_argument(argument.name, model::text_of(argument.expected) + ", as the model was exported with",
                      model::text_of(given[k]));
    }
  }
}

}  // namespace fourfold::model
