#include "program.h"

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstring>

#include "values.h"

namespace fourfold::graph {
namespace {

template <typename T>
int64_t as_bits(T number) {
  int64_t bits = 0;
  std::memcpy(&bits, &number, sizeof number);
  return bits;
}

// The inputs of one call, alive until it returns.
class Inputs {
 public:
  Inputs(size_t count, at::Device device) : device_(device) {
    held_.reserve(count);
    given_.reserve(count);
    numbers_.reserve(count);
  }

  void add(const at::Tensor& tensor) {
    const bool is_traced = tensor.unsafeGetTensorImpl()->is_python_dispatch() || is_wrapped(tensor) ||
                           tensor.key_set().has(c10::DispatchKey::Functionalize);
    TORCH_CHECK_VALUE(!is_traced && !tensor._is_zerotensor() && tensor.device() == device_ && tensor.layout() == at::kStrided,
                      "program: expected a plain strided tensor on ", device_, ", but got ", tensor.toString(), " on ", tensor.device());
    const at::Tensor* read = &tensor;
    if (tensor.is_neg()) {
      held_.push_back(tensor.resolve_neg());
      read = &held_.back();
    }
    given_.push_back({const_cast<void*>(read->const_data_ptr()), static_cast<int32_t>(read->scalar_type()),
                      static_cast<int32_t>(read->dim()), read->sizes().data(), read->strides().data(),
                      const_cast<void*>(read->storage().data())});
  }

  void add(const c10::IValue& number, int32_t dtype) {
    numbers_.push_back(bits_of(scalar_of(number), static_cast<at::ScalarType>(dtype)));
    given_.push_back({&numbers_.back(), dtype, 0, nullptr, nullptr, nullptr});
  }

  const c10::SmallVector<fourfold_tensor, 8>& given() const { return given_; }

 private:
  at::Device device_;
  std::vector<at::Tensor> held_;
  c10::SmallVector<fourfold_tensor, 8> given_;
  std::vector<int64_t> numbers_;
};

}  // namespace

at::Scalar scalar_of(const c10::IValue& number) {
  if (number.isTensor() && number.toTensor().is_cpu() && number.toTensor().dim() == 0) return number.toTensor().item();
  TORCH_CHECK_TYPE(number.isScalar() || number.isBool(), "program: expected a number, but got ", number.tagKind());
  return number.toScalar();
}

int64_t bits_of(const at::Scalar& number, at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return as_bits(number.toDouble());
    case at::kFloat: return as_bits(number.toFloat());
    case at::kBool: return as_bits(number.toBool());
    case at::kInt: return as_bits(number.toInt());
    default: return number.toLong();
  }
}

void run_program(const NamedProgram& named, const std::vector<const c10::IValue*>& values, std::vector<at::Tensor>& outputs,
                 const std::vector<Target>& targets) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) {
    std::vector<c10::IValue> shown;
    if (record.needsInputs()) {
      for (const c10::IValue* value : values) shown.push_back(*value);
    }
    record.before(named.name, c10::ArrayRef<const c10::IValue>(shown.data(), shown.size()));
  }
  const auto expected = static_cast<size_t>(fourfold_program_inputs(named.program));
  TORCH_CHECK_TYPE(values.size() == expected, "program: expected ", std::to_string(expected), " inputs, but got ",
                   std::to_string(values.size()));
  Inputs inputs(expected, named.device);
  for (size_t k = 0; k < expected; ++k) {
    const int32_t number = fourfold_program_number(named.program, static_cast<int32_t>(k));
    if (number >= 0) {
      inputs.add(*values[k], number);
    } else {
      TORCH_CHECK_TYPE(values[k]->isTensor(), "program: expected a tensor as input ", std::to_string(k), ", but got ",
                       values[k]->tagKind());
      inputs.add(values[k]->toTensor());
    }
  }
  Outputs memory(named, inputs.given(), targets);
  const int32_t failed = fourfold_program_run(
      named.program, inputs.given().data(), static_cast<int32_t>(expected), memory.given(), Outputs::allocate, &memory);
  TORCH_CHECK_VALUE(failed == 0, fourfold_program_error());
  memory.take(outputs);
}

}  // namespace fourfold::graph
