// Parses the steps of a compiled graph from the Python objects of the compiler's pass `plan`.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "../graph/graph.h"

namespace fourfold::bindings {

// Throws a Python exception if the object is not a step.
graph::GraphStep step_of(pybind11::handle given);

// plan_loop(step, given, values, firsts): LoopStep::plan() of a loop's step of a plan. Returns (why there is no nest, the
// nest's layout, why there are no stages, the stages as (step of the body or -1, text)).
PyObject* plan_loop(PyObject*, PyObject* arguments);

}  // namespace fourfold::bindings
