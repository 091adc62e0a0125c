// fourfold.Graph for Python: a compiled graph, forward or backward.
#pragma once

#include <Python.h>

#include <memory>

#include "../model/graph.h"

namespace fourfold::bindings {

using model::CompiledGraph;

// Of an object of the type Graph; throws TypeError for others.
std::shared_ptr<const CompiledGraph> graph_of(PyObject* object);

}  // namespace fourfold::bindings
