// fourfold.Graph for Python: a compiled graph, forward or backward.
#pragma once

#include <Python.h>

#include <memory>

#include "../graph/graph.h"

namespace fourfold::bindings {

using graph::CompiledGraph;

// The graph of an object of type Graph; throws TypeError for other types.
std::shared_ptr<const CompiledGraph> graph_of(PyObject* object);

}  // namespace fourfold::bindings
