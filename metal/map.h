// out = f(inputs…), element by element, on tensors that broadcast to one shape.
#pragma once

#include <string>

#include "encoder.h"
#include "ops/elementwise.h"

namespace fourfold::mps {

// A formula's type in `source`, whether it is a template over the type that it computes in, and how many scalars it has.
struct Formula {
  const Source& source;
  const char* name;
  bool of_type;
  int scalars;
};

// `call` is Forward or Backward, as in elementwise_kernels.h; the label is the operator's.
void map(const char* label, const Elementwise& job, const Formula& formula, const char* call);

}  // namespace fourfold::mps
