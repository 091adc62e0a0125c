#define PY_SSIZE_T_CLEAN  // "s#" takes Py_ssize_t lengths
#include "program.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {
namespace {

// Program(text, name, generator, device): called with a tensor or a number for each of the program's inputs, returns
// its output, or a tuple of several. name: shown by profilers.
struct ProgramObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  fourfold_program* program;
  std::string* name;
  at::Device* device;
};

PyTypeObject* program_type = nullptr;

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
  ProgramObject& self = *reinterpret_cast<ProgramObject*>(made);
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
  fourfold_program_delete(reinterpret_cast<ProgramObject*>(made)->program);
  delete reinterpret_cast<ProgramObject*>(made)->name;
  delete reinterpret_cast<ProgramObject*>(made)->device;
  type->tp_free(made);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_program_type() {
  PyObject* type = make_vectorcall_type<ProgramObject>(
      "fourfold.Program", "A pointwise program: called with its inputs, gives its outputs.", init_program,
      dealloc_program);
  program_type = reinterpret_cast<PyTypeObject*>(type);
  return type;
}

graph::NamedProgram program_of(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == program_type, "expected a Program, but got ", Py_TYPE(object)->tp_name);
  const ProgramObject& self = *reinterpret_cast<const ProgramObject*>(object);
  TORCH_CHECK_TYPE(self.program != nullptr, "program: expected one that was made of a text");
  return {self.program, self.name->c_str(), *self.device};
}

}  // namespace fourfold::bindings
