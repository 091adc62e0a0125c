// A Python object held by C++.
#pragma once

#include <Python.h>

namespace fourfold::bindings {

// A reference that any thread may release.
class Held {
 public:
  explicit Held(PyObject* object);  // takes a new reference
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

}  // namespace fourfold::bindings
