// The jobs of the single step's kernels. Flags select the results, because the pointer of an empty tensor is null too.
#pragma once

#include "ops/kind.h"

namespace fourfold {

// The operands for kernels that also compute the products; all contiguous and of the job's dtype.
struct LltmCellFactors {
  int64_t input_size = 0;
  Input x = {};        // (batch, input_size)
  Input h = {};        // (batch, hidden_size)
  Input weights = {};  // (3 * hidden_size, hidden_size + input_size)
  Input bias = {};     // (3 * hidden_size), or null
};

// One step. All tensors are contiguous and of dtype `kind`.
struct LltmCellForward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  bool multiply;     // whether the kernel computes W [h, x] + b from `factors`; otherwise it reads `projection`
  Input projection;  // (batch, 3 * hidden_size); may alias `kept`
  Input c;           // (batch, hidden_size)
  bool keep;         // whether to write `kept`
  Output kept;       // out (batch, 3 * hidden_size): the gates after activation
  Output next_h;     // out (batch, hidden_size)
  Output next_c;     // out (batch, hidden_size)
  LltmCellFactors factors = {};
};

struct LltmCellBackward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  Input kept;              // (batch, 3 * hidden_size)
  Input next_c;            // (batch, hidden_size)
  Input grad_h;            // (batch, hidden_size), or null for zero
  Input grad_next_c;       // (batch, hidden_size), or null for zero
  Output grad_c;           // out (batch, hidden_size)
  bool multiply = false;   // whether the kernel computes the gradients below; otherwise it writes `grad_gates`
  Output grad_gates = {};  // out (batch, 3 * hidden_size), unless `multiply`
  LltmCellFactors factors = {};
  bool need_x = false;
  bool need_h = false;
  bool need_weights = false;
  Output grad_x = {};           // out (batch, input_size), if need_x
  Output grad_previous_h = {};  // out (batch, hidden_size), if need_h
  Output grad_weights = {};     // out, shaped like weights, if need_weights
  Output grad_bias = {};        // out (3 * hidden_size), if need_weights; null without bias
};

}  // namespace fourfold
