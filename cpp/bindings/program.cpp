#define PY_SSIZE_T_CLEAN  // lengths are Py_ssize_t
#include "program.h"

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <optional>
#include <string>

#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {
namespace {

template <typename T>
int64_t as_bits(T number) {
  int64_t bits = 0;
  std::memcpy(&bits, &number, sizeof number);
  return bits;
}

// Program(text, name, generator, device): called with a tensor or a number for each of the program's inputs, gives its outputs: a tensor, or a
// tuple of them where there are several. Profilers show the name.
struct Program {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  fourfold_program* program;
  std::string* name;
  at::Device* device;
};

PyTypeObject* program_type = nullptr;

// The inputs of one call, alive until it returns.
class Inputs {
 public:
  Inputs(size_t count, at::Device device) : device_(device) {
    held_.reserve(count);
    given_.reserve(count);
    numbers_.reserve(count);
  }

  void add(const at::Tensor& tensor) {
    const bool is_traced = tensor.unsafeGetTensorImpl()->is_python_dispatch() || is_wrapped(tensor);
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
    TORCH_CHECK_TYPE(number.isScalar() || number.isBool(), "program: expected a number, but got ", number.tagKind());
    numbers_.push_back(bits_of(number.toScalar(), static_cast<at::ScalarType>(dtype)));
    given_.push_back({&numbers_.back(), dtype, 0, nullptr, nullptr, nullptr});
  }

  const c10::SmallVector<fourfold_tensor, 8>& given() const { return given_; }

 private:
  at::Device device_;
  std::vector<at::Tensor> held_;
  c10::SmallVector<fourfold_tensor, 8> given_;
  std::vector<int64_t> numbers_;
};

PyObject* call_program(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  TORCH_CHECK_TYPE(names == nullptr, "program: expected no names of arguments");
  std::vector<c10::IValue> values;
  std::vector<const c10::IValue*> inputs;
  values.reserve(count);
  for (size_t k = 0; k < count; ++k) {
    values.push_back(value_of(arguments[k]));
    inputs.push_back(&values.back());
  }
  std::vector<at::Tensor> outputs;
  {
    const pybind11::gil_scoped_release released;
    run_program(program_of(callable), inputs, outputs);
  }
  if (outputs.size() == 1) return THPVariable_Wrap(std::move(outputs[0]));
  PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(outputs.size()));
  for (size_t k = 0; results != nullptr && k < outputs.size(); ++k) {
    PyTuple_SET_ITEM(results, static_cast<Py_ssize_t>(k), THPVariable_Wrap(std::move(outputs[k])));
  }
  return results;
  END_HANDLE_TH_ERRORS
}

int init_program(PyObject* made, PyObject* given, PyObject*) {
  Program& self = *reinterpret_cast<Program*>(made);
  const char* text = nullptr;
  const char* name = "fourfold_program";
  Py_ssize_t length = 0;
  int generator = 1;
  PyObject* device = nullptr;
  if (!PyArg_ParseTuple(given, "s#|siO", &text, &length, &name, &generator, &device)) return -1;
  if (device != nullptr && !THPDevice_Check(device)) {
    PyErr_SetString(PyExc_TypeError, "program: expected a torch.device");
    return -1;
  }
  const at::Device own = device == nullptr ? at::Device(at::kCPU) : reinterpret_cast<THPDevice*>(device)->device;
  if (self.program != nullptr) {
    PyErr_SetString(PyExc_TypeError, "program: expected to be made once");
    return -1;
  }
  self.program = fourfold_program_new(text, length, static_cast<int32_t>(own.type()), own.has_index() ? own.index() : 0);
  if (self.program == nullptr) {
    PyErr_SetString(PyExc_ValueError, fourfold_program_error());
    return -1;
  }
  fourfold_program_generate(self.program, generator);
  self.vectorcall = call_program;
  self.name = new std::string(name);
  self.device = new at::Device(own);
  return 0;
}

void dealloc_program(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  fourfold_program_delete(reinterpret_cast<Program*>(made)->program);
  delete reinterpret_cast<Program*>(made)->name;
  delete reinterpret_cast<Program*>(made)->device;
  type->tp_free(made);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_program_type() {
  PyObject* type = make_vectorcall_type<Program>(
      "fourfold.Program", "A pointwise program: called with its inputs, gives its outputs.", init_program,
      dealloc_program);
  program_type = reinterpret_cast<PyTypeObject*>(type);
  return type;
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

NamedProgram program_of(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == program_type, "expected a Program, but got ", Py_TYPE(object)->tp_name);
  const Program& self = *reinterpret_cast<const Program*>(object);
  TORCH_CHECK_TYPE(self.program != nullptr, "program: expected one that was made of a text");
  return {self.program, self.name->c_str(), *self.device};
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
  TORCH_CHECK_TYPE(values.size() == expected, "program: expected ", expected, " inputs, but got ", values.size());
  Inputs inputs(expected, named.device);
  for (size_t k = 0; k < expected; ++k) {
    const int32_t number = fourfold_program_number(named.program, static_cast<int32_t>(k));
    if (number >= 0) {
      inputs.add(*values[k], number);
    } else {
      TORCH_CHECK_TYPE(values[k]->isTensor(), "program: expected a tensor as input ", k, ", but got ", values[k]->tagKind());
      inputs.add(values[k]->toTensor());
    }
  }
  // A program may wait for its nest, which Python compiles; torch's compiled autograd calls with the GIL.
  std::optional<pybind11::gil_scoped_release> released;
  if (PyGILState_Check() != 0) released.emplace();
  Outputs memory(named, inputs.given(), targets);
  const int32_t failed = fourfold_program_run(
      named.program, inputs.given().data(), static_cast<int32_t>(expected), memory.given(), Outputs::allocate, &memory);
  TORCH_CHECK_VALUE(failed == 0, fourfold_program_error());
  memory.take(outputs);
}

}  // namespace fourfold::bindings
