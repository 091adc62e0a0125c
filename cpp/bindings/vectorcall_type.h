// Python types whose objects are called by the vectorcall protocol, without a tuple of arguments.
#pragma once

#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <vector>

namespace fourfold::bindings {

// A new reference; null with a Python error set. Object begins with PyObject_HEAD and has a member `vectorcall`, which init
// sets. dealloc: null if objects are never freed.
template <typename Object>
PyObject* make_vectorcall_type(
    const char* name, const char* doc, initproc init, destructor dealloc) {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Object, vectorcall), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};
  std::vector<PyType_Slot> slots{
      {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
      {Py_tp_init, reinterpret_cast<void*>(init)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {Py_tp_doc, const_cast<char*>(doc)}};
  if (dealloc != nullptr) slots.push_back({Py_tp_dealloc, reinterpret_cast<void*>(dealloc)});
  slots.push_back({0, nullptr});
  PyType_Spec spec = {name, sizeof(Object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots.data()};
  return PyType_FromSpec(&spec);
}

}  // namespace fourfold::bindings
