// What the single step's kernels are given.
#pragma once

#include "ops/kind.h"

namespace fourfold {

// One step after its product, all contiguous and of the type that kind names.
struct LltmCellForward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  const void* projection;  // (batch, 3 * hidden_size): W [h, x] + b; may be the same as activated
  const void* c;           // (batch, hidden_size)
  void* activated;         // out (batch, 3 * hidden_size), or null
  void* next_h;            // out (batch, hidden_size)
  void* next_c;            // out (batch, hidden_size)
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
  void* grad_gates;         // out (batch, 3 * hidden_size)
  void* grad_c;             // out (batch, hidden_size)
};

}  // namespace fourfold
