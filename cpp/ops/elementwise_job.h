// An elementwise operation on tensors that broadcast to one shape, described for a backend's kernel.
//
// Its formula, cpp/formulas/<name>.h, is a struct over a number type: its members are the operation's scalars, of_integers
// says whether it is computed of integers too, forward takes an element of each input, and so does backward, where there
// is one, of the gradient first.
#pragma once

#include "ops/kind.h"

namespace fourfold {

struct Elementwise {
  static constexpr int most_inputs = 3;
  static constexpr int most_scalars = 2;
  static constexpr int most_axes = 64;  // each has at least two elements, and memory ends before 2^64

  struct Axis {
    int64_t size;
    int64_t stride[1 + most_inputs];  // in elements; out's first
  };

  Place place;
  Kind kind;  // of all operands
  int64_t element_size;
  int64_t numel;
  int inputs;
  double scalar[most_scalars] = {};  // whole numbers where the kind is an integer
  Output out;                   // its elements lie side by side, or those of the innermost axis do
  Input in[most_inputs];
  // Outermost first. Two that every operand steps through as through one are one; none has size 1.
  int axes;
  Axis axis[most_axes];
};

}  // namespace fourfold
