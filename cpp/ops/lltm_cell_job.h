// What the single step's kernels are given. What a call wants is said by flags: an empty tensor's pointer is null too.
#pragma once

#include "ops/kind.h"

namespace fourfold {

// What the kernels that make the products too are given of them, all contiguous and of the job's type.
struct LltmCellFactors {
  int64_t input_size = 0;
  Input x = {};        // (batch, input_size)
  Input h = {};        // (batch, hidden_size)
  Input weights = {};  // (3 * hidden_size, hidden_size + input_size)
  Input bias = {};     // (3 * hidden_size), or null
};

// One step, all contiguous and of the type that kind names.
struct LltmCellForward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  bool multiply;     // whether the kernel makes W [h, x] + b of `factors`; otherwise it is `projection`
  Input projection;  // (batch, 3 * hidden_size), may be `kept` itself
  Input c;           // (batch, hidden_size)
  bool keep;         // whether `kept` is written
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
  bool multiply = false;   // whether the kernel makes the gradients below of the gates'; otherwise it returns these
  Output grad_gates = {};  // out (batch, 3 * hidden_size), unless `multiply`
  LltmCellFactors factors = {};
  bool need_x = false;
  bool need_h = false;
  bool need_weights = false;
  Output grad_x = {};           // out (batch, input_size), written if need_x
  Output grad_previous_h = {};  // out (batch, hidden_size), if need_h
  Output grad_weights = {};     // out, as weights, if need_weights; so is the next
  Output grad_bias = {};        // out (3 * hidden_size), or null where there is no bias
};

}  // namespace fourfold
