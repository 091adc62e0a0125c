// What the single step's kernels are given. What a call wants is said by flags: an empty tensor's pointer is null too.
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
  bool multiply;           // whether the kernel makes W [h, x] + b of `factors`; otherwise it is `projection`
  const void* projection;  // (batch, 3 * hidden_size), may be activated itself
  const void* c;           // (batch, hidden_size)
  bool keep;               // whether `activated` is written
  void* activated;         // out (batch, 3 * hidden_size)
  void* next_h;            // out (batch, hidden_size)
  void* next_c;            // out (batch, hidden_size)
  LltmCellFactors factors = {};
};

struct LltmCellBackward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t hidden_size;
  const void* activated;       // (batch, 3 * hidden_size)
  const void* next_c;          // (batch, hidden_size)
  const void* grad_h;          // (batch, hidden_size), or null for zero
  const void* grad_next_c;     // (batch, hidden_size), or null for zero
  void* grad_c;                // out (batch, hidden_size)
  bool multiply = false;       // whether the kernel makes the gradients below of the gates'; otherwise it returns these
  void* grad_gates = nullptr;  // out (batch, 3 * hidden_size), unless `multiply`
  LltmCellFactors factors = {};
  bool need_x = false;
  bool need_h = false;
  bool need_weights = false;
  void* grad_x = nullptr;           // out (batch, input_size), written if need_x
  void* grad_previous_h = nullptr;  // out (batch, hidden_size), if need_h
  void* grad_weights = nullptr;     // out, as weights, if need_weights; so is the next
  void* grad_bias = nullptr;        // out (3 * hidden_size), or null where there is no bias
};

}  // namespace fourfold
