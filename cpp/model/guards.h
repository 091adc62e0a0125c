// Checks before each call of an operator from a model file, for operators whose torch kernels would read out of bounds.
// python/fourfold/saving/in_python/guards.py has the same.
#pragma once

#include "../graph/operator_step.h"

namespace fourfold::model {

using namespace graph;

// Null if torch checks everything.
Guard guard_of(const c10::OperatorHandle& handle);

}  // namespace fourfold::model
