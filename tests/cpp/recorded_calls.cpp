// Repeats calls of libfourfold's operators that tests/recorded_calls.py wrote into a file, through torch's C functions only,
// which code of any compiler can call, and compares the results: `recorded_calls FILE`. Prints how many.
#include <fourfold/library.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

void check(int32_t code, const std::string& what) {
  if (code != 0) throw std::runtime_error(what + " failed");
}

struct Kind {
  const char* name;
  int32_t code;
  size_t size;
};

const Kind& kind_of(const std::string& name) {
  static const std::vector<Kind> kinds{
      {"float32", aoti_torch_dtype_float32(), 4}, {"float64", aoti_torch_dtype_float64(), 8},
      {"float16", aoti_torch_dtype_float16(), 2}, {"bfloat16", aoti_torch_dtype_bfloat16(), 2},
      {"int64", aoti_torch_dtype_int64(), 8}, {"int32", aoti_torch_dtype_int32(), 4},
      {"int16", aoti_torch_dtype_int16(), 2}, {"int8", aoti_torch_dtype_int8(), 1}, {"uint8", aoti_torch_dtype_uint8(), 1},
      {"bool", aoti_torch_dtype_bool(), 1}};
  for (const Kind& kind : kinds) {
    if (name == kind.name) return kind;
  }
  throw std::runtime_error("no dtype " + name);
}

struct Recorded {
  Kind kind;
  std::vector<int64_t> sizes;
  std::string bytes;
};

struct Reader {
  std::string text;
  size_t at = 0;

  std::string word() {
    const size_t end = text.find(' ', at);
    std::string found = text.substr(at, end - at);
    at = end + 1;
    return found;
  }
  int64_t integer() { return std::stoll(word()); }
  std::string bytes() {
    const auto count = static_cast<size_t>(integer());
    std::string found = text.substr(at, count);
    at += count + 1;
    return found;
  }
  double number() {
    double value = 0;
    std::memcpy(&value, bytes().data(), sizeof value);
    return value;
  }
  Recorded recorded() {
    Recorded found{kind_of(word()), std::vector<int64_t>(static_cast<size_t>(integer())), {}};
    for (int64_t& size : found.sizes) size = integer();
    found.bytes = bytes();
    return found;
  }
  Tensor tensor() {
    const Recorded found = recorded();
    std::vector<int64_t> strides(found.sizes.size());
    int64_t stride = 1;
    for (size_t k = strides.size(); k-- > 0; stride *= found.sizes[k]) strides[k] = stride;
    AtenTensorHandle handle = nullptr;
    const auto axes = static_cast<int64_t>(found.sizes.size());
    check(aoti_torch_empty_strided(axes, found.sizes.data(), strides.data(), found.kind.code, aoti_torch_device_type_cpu(), 0, &handle),
          "a tensor");
    Tensor made(handle);
    if (!found.bytes.empty()) std::memcpy(made.data_ptr(), found.bytes.data(), found.bytes.size());
    return made;
  }
  template <typename T, typename F>
  StableIValue list(const F& read) {
    std::vector<T> found;
    for (int64_t left = integer(); left > 0; --left) found.push_back(read());
    return from(found);
  }
  // A std::vector<bool> has no array.
  StableIValue bools() {
    const auto count = static_cast<size_t>(integer());
    const auto found = std::make_unique<bool[]>(count);
    for (size_t k = 0; k < count; ++k) found[k] = integer() != 0;
    return from(torch::headeronly::HeaderOnlyArrayRef<bool>(found.get(), count));
  }
  std::optional<Tensor> optional_tensor() {
    if (word() == "none") return std::nullopt;
    return tensor();
  }
  StableIValue argument() {
    const std::string type = word();
    if (type == "tensor") return from(tensor());
    if (type == "tensor?") return from(optional_tensor());
    if (type == "tensors") return list<Tensor>([&] { return tensor(); });
    if (type == "tensors?") return list<std::optional<Tensor>>([&] { return optional_tensor(); });
    if (type == "float") return from(number());
    if (type == "floats") return list<double>([&] { return number(); });
    if (type == "int") return from(integer());
    if (type == "ints") return list<int64_t>([&] { return integer(); });
    if (type == "bool") return from(integer() != 0);
    if (type == "bools") return bools();
    if (type == "str") return from(bytes());
    if (type == "none") return from(std::nullopt);
    throw std::runtime_error("no type " + type);
  }
};

double of_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

double value_at(const std::string& kind, const char* data) {
  const auto read = [&](auto value) { return std::memcpy(&value, data, sizeof value), static_cast<double>(value); };
  if (kind == "float32") return read(0.0f);
  if (kind == "float64") return read(0.0);
  uint16_t half = 0;
  std::memcpy(&half, data, sizeof half);
  const uint32_t bits = half;
  if (kind == "bfloat16") return of_bits(bits << 16);
  const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double value = std::ldexp(exponent ? 1024 + mantissa : mantissa, exponent ? int(exponent) - 25 : -24);
  return (bits >> 15 ? -1 : 1) * (exponent < 31 ? value : mantissa ? NAN : INFINITY);
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void compare(const std::string& name, const Tensor& got, const Recorded& want) {
  int32_t code = -1;
  check(aoti_torch_get_dtype(got.get(), &code), name);
  if (code != want.kind.code || static_cast<size_t>(got.numel()) * want.kind.size != want.bytes.size()) {
    throw std::runtime_error(name + ": another size or dtype");
  }
  if (!got.is_contiguous()) throw std::runtime_error(name + ": not contiguous");
  const auto* data = static_cast<const char*>(got.data_ptr());
  const std::string kind = want.kind.name;
  if (kind.find("float") == kind.npos) {
    if (std::memcmp(data, want.bytes.data(), want.bytes.size()) != 0) throw std::runtime_error(name + ": " + kind + " differs");
    return;
  }
  // A program's float64 may be a float32 that another level rounded differently.
  const bool exact = kind == "float64" && name.find("_run_program") == name.npos;
  const double bound = exact ? 1e-11 : kind == "float64" ? 1e-6 : kind == "float32" ? 1e-4 : 2e-2;
  for (size_t k = 0; k < want.bytes.size(); k += want.kind.size) {
    const double a = value_at(kind, data + k), b = value_at(kind, want.bytes.data() + k);
    if (!(a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= bound * (1 + std::abs(b)))) {
      const std::string place = kind + " element " + std::to_string(k / want.kind.size);
      throw std::runtime_error(name + ": " + place + " is off by " + text_of(a - b) + " from " + text_of(b));
    }
  }
}

int run(const char* file) {
  if (const char* other = fourfold_other_copy_error()) throw std::runtime_error(other);
  std::ifstream in(file, std::ios::binary);
  Reader reader{{std::istreambuf_iterator<char>(in), {}}};
  int calls = 0;
  for (; reader.at < reader.text.size(); ++calls) {
    const std::string name = reader.word();
    std::vector<StableIValue> stack;
    for (int64_t left = reader.integer(); left > 0; --left) stack.push_back(reader.argument());
    const auto outputs = static_cast<size_t>(reader.integer());
    stack.resize(std::max(stack.size(), outputs));
    check(torch_call_dispatcher(name.c_str(), "", stack.data(), TORCH_ABI_VERSION), name);
    for (size_t k = 0; k < outputs; ++k) {
      const std::string type = reader.word();
      std::vector<Tensor> results;
      if (type == "tensors") results = to<std::vector<Tensor>>(stack[k]);
      else results.push_back(to<Tensor>(stack[k]));
      const int64_t count = type == "tensors" ? reader.integer() : 1;
      for (int64_t one = 0; one < count; ++one) {
        const Recorded want = reader.recorded();
        const size_t place = k + static_cast<size_t>(one);
        const std::string what = name + " in call " + std::to_string(calls) + ", output " + std::to_string(place);
        if (type != "any") compare(what, results.at(static_cast<size_t>(one)), want);
      }
    }
  }
  return calls;
}

}  // namespace

int main(int, char** arguments) {
  try {
    std::printf("%d calls\n", run(arguments[1]));
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
