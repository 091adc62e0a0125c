// What the single step's kernels are given.
#pragma once

#include "ops/kind.h"

namespace fourfold {

// What the kernels that make the products too are given of them, all contiguous and of the job's type.
struct LltmCellFactors {
  int64_t input_size = 0;
  const void* x = nullptr;        // (batch, input_size)
  const void* h = nullptr;        // (batch, hidden_size)
  const void* weights = nullptr;  // (3 * hidden_size, hidden_size + input_size)
  const void* bias = nullptr;     // (3 * hidden_size), or null
};

// One step, all contiguous and of the type that kind names.
struct LltmCellForward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  const void* projection;  // (batch, 3 * hidden_size): W [h, x] + b, may be activated itself; or null: of `factors`
  const void* c;           // (batch, hidden_size)
  void* activated;         // out (batch, 3 * hidden_size), or null
  void* next_h;            // out (batch, hidden_size)
  void* next_c;            // out (batch, hidden_size)
  LltmCellFactors factors = {};
};

struct LltmCellBackward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  const void* activated;    // (batch, 3 * hidden_size)
  const void* next_c;       // (batch, hidden_size)
  const void* grad_h;       // (batch, hidden_size), or null for zero
  const void* grad_next_c;  // (batch, hidden_size), or null for zero
  void* grad_gates;         // out (batch, 3 * hidden_size); or null: then the gradients below are made of it
  void* grad_c;             // out (batch, hidden_size)
  LltmCellFactors factors = {};
  void* grad_x = nullptr;           // out (batch, input_size), or null
  void* grad_previous_h = nullptr;  // out (batch, hidden_size), or null
  void* grad_weights = nullptr;     // out, as weights, or null
  void* grad_bias = nullptr;        // out (3 * hidden_size), or null
};

}  // namespace fourfold
