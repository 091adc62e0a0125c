// A Python object that C++ keeps.
#pragma once

#include <Python.h>

namespace fourfold::bindings {

// A reference that may be dropped by any thread.
class Held {
 public:
  explicit Held(PyObject* object);  // takes a reference of its own
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

}  // namespace fourfold::bindings
