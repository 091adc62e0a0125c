// out = f(inputs…), element by element, on tensors that broadcast to one shape.
#pragma once

#include <string>

#include "encoder.h"
#include "ops/elementwise.h"

namespace fourfold::mps {

// A formula's type in `source`, whether it is a template over its compute type, and the number of its scalars.
struct Formula {
  const Source& source;
  const char* name;
  bool of_type;
  int scalars;
};

// call: Forward or Backward, see elementwise_kernels.h; label: the operator's.
void map(const char* label, const Elementwise& job, const Formula& formula, const char* call);

}  // namespace fourfold::mps
