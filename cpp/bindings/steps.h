// Parses the steps of a compiled graph from the Python objects of the compiler's pass `plan`.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "../graph/graph.h"

namespace fourfold::bindings {

// Throws a Python exception if the object is not a step.
graph::GraphStep step_of(pybind11::handle given);

}  // namespace fourfold::bindings
