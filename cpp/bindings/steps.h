// The steps of a compiled graph, of what the compiler's pass `plan` writes in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "../model/graph.h"

namespace fourfold::bindings {

// Throws what Python raises if the object is not a step.
model::GraphStep step_of(pybind11::handle given);

}  // namespace fourfold::bindings
