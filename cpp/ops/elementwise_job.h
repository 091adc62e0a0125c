// The job of an elementwise kernel: an operation on tensors that broadcast to one shape.
//
// Its formula, cpp/formulas/<name>.h, is a struct over a number type. Its data members are the operation's scalars;
// of_integers is whether it supports integers; forward takes an element of each input; backward, if there is one, takes
// the gradient, then an element of each input.
#pragma once

#include "ops/kind.h"

namespace fourfold {

struct Elementwise {
  static constexpr int most_inputs = 3;
  static constexpr int most_scalars = 2;
  static constexpr int most_axes = 64;  // each has at least two elements, so that 64 axes exceed any memory

  struct Axis {
    int64_t size;
    int64_t stride[1 + most_inputs];  // in elements; out's first
  };

  Place place;
  Kind kind;  // of all operands
  int64_t element_size;
  int64_t numel;
  int inputs;
  double scalar[most_scalars] = {};  // whole numbers if the kind is an integer
  Output out;                   // dense, or contiguous along the innermost axis
  Input in[most_inputs];
  // Outermost first. Axes that are mergeable for every operand are merged; none has size 1.
  int axes;
  Axis axis[most_axes];
};

}  // namespace fourfold
