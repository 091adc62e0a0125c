#define PY_SSIZE_T_CLEAN  // lengths as Py_ssize_t, which Python's header wants to be told
#include "program.h"

#include <structmember.h>

#include <ATen/EmptyTensor.h>
#include <fourfold/program.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <vector>

namespace fourfold::bindings {
namespace {

// Program(text): called with a tensor or a number for each of the program's inputs, gives its outputs: a tensor, or a tuple
// of them where there are several.
struct Program {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  fourfold_program* program;
};

// The inputs of one call, held until it is over.
struct Inputs {
  std::vector<at::Tensor> tensors;
  std::vector<fourfold_tensor> given;
  std::vector<int64_t> numbers;

  explicit Inputs(size_t count) {
    tensors.reserve(count);
    given.reserve(count);
    numbers.reserve(count);
  }

  void add(const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor._is_zerotensor(),
                      "program: expected a strided tensor on the CPU, but got ", tensor.toString(), " on ", tensor.device());
    tensors.push_back(tensor.is_neg() ? tensor.resolve_neg() : tensor);
    const at::Tensor& held = tensors.back();
    given.push_back({const_cast<void*>(held.const_data_ptr()), static_cast<int32_t>(held.scalar_type()),
                     static_cast<int32_t>(held.dim()), held.sizes().data(), held.strides().data()});
  }

  void add_bits(int64_t bits, int32_t dtype) {
    numbers.push_back(bits);
    given.push_back({&numbers.back(), dtype, 0, nullptr, nullptr});
  }
};

template <typename T>
int64_t bits_of(T number) {
  int64_t bits = 0;
  std::memcpy(&bits, &number, sizeof number);
  return bits;
}

bool add_number(Inputs& inputs, PyObject* given, int32_t dtype) {
  switch (static_cast<at::ScalarType>(dtype)) {
    case at::kDouble: inputs.add_bits(bits_of(PyFloat_AsDouble(given)), dtype); break;
    case at::kFloat: inputs.add_bits(bits_of(static_cast<float>(PyFloat_AsDouble(given))), dtype); break;
    case at::kBool: inputs.add_bits(PyObject_IsTrue(given), dtype); break;
    case at::kInt: inputs.add_bits(bits_of(static_cast<int32_t>(PyLong_AsLongLong(given))), dtype); break;
    default: inputs.add_bits(PyLong_AsLongLong(given), dtype);
  }
  return PyErr_Occurred() == nullptr;
}

bool read(const Program& self, PyObject* const* arguments, size_t count, Inputs& inputs) {
  const auto expected = static_cast<size_t>(fourfold_program_inputs(self.program));
  TORCH_CHECK_TYPE(count == expected, "program: expected ", expected, " inputs, but got ", count);
  for (size_t k = 0; k < count; ++k) {
    const int32_t number = fourfold_program_number(self.program, static_cast<int32_t>(k));
    if (number >= 0) {
      if (!add_number(inputs, arguments[k], number)) return false;
    } else {
      TORCH_CHECK_TYPE(THPVariable_Check(arguments[k]), "program: expected a tensor as input ", k, ", but got ",
                       Py_TYPE(arguments[k])->tp_name);
      inputs.add(THPVariable_Unpack(arguments[k]));
    }
  }
  return true;
}

void* allocate(void* context, int32_t, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
  auto& outputs = *static_cast<std::vector<at::Tensor>*>(context);
  const at::IntArrayRef shape(sizes, static_cast<size_t>(dim)), distances(strides, static_cast<size_t>(dim));
  outputs.emplace_back(at::detail::empty_strided_cpu(shape, distances, static_cast<at::ScalarType>(dtype)));
  return outputs.back().mutable_data_ptr();
}

PyObject* call(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const Program& self = *reinterpret_cast<const Program*>(callable);
  TORCH_CHECK_TYPE(names == nullptr, "program: expected no names of arguments");
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  Inputs inputs(count);
  if (!read(self, arguments, count, inputs)) return nullptr;
  std::vector<at::Tensor> outputs;
  outputs.reserve(static_cast<size_t>(fourfold_program_outputs(self.program)));
  {
    const pybind11::gil_scoped_release released;
    const int32_t failed = fourfold_program_run(
        self.program, inputs.given.data(), static_cast<int32_t>(count), allocate, &outputs);
    TORCH_CHECK_VALUE(failed == 0, fourfold_program_error());
  }
  if (outputs.size() == 1) return THPVariable_Wrap(std::move(outputs[0]));
  PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(outputs.size()));
  for (size_t k = 0; results != nullptr && k < outputs.size(); ++k) {
    PyTuple_SET_ITEM(results, static_cast<Py_ssize_t>(k), THPVariable_Wrap(std::move(outputs[k])));
  }
  return results;
  END_HANDLE_TH_ERRORS
}

int init(PyObject* made, PyObject* given, PyObject*) {
  Program& self = *reinterpret_cast<Program*>(made);
  const char* text = nullptr;
  Py_ssize_t length = 0;
  if (!PyArg_ParseTuple(given, "s#", &text, &length)) return -1;
  self.vectorcall = call;
  self.program = fourfold_program_new(text, length);
  if (self.program == nullptr) PyErr_SetString(PyExc_ValueError, fourfold_program_error());
  return self.program == nullptr ? -1 : 0;
}

void dealloc(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  fourfold_program_delete(reinterpret_cast<Program*>(made)->program);
  type->tp_free(made);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Program, vectorcall), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};
PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, members},
    {Py_tp_doc, const_cast<char*>("A pointwise program: called with its inputs, gives its outputs.")},
    {0, nullptr}};
PyType_Spec spec = {"fourfold.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

PyObject* make_program_type() { return PyType_FromSpec(&spec); }

}  // namespace fourfold::bindings
