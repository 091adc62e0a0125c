// The jobs of a recurrent layer's kernels: one layer, one direction. Tensors are contiguous, except those with a
// leading dimension, and of dtype `kind`. rows = the sum of all steps' batch sizes; row offsets[t] + b is row b of step
// t. Packed batches are sorted by length, so a step's rows are the first offsets[t + 1] - offsets[t] of the batch.
//
// The cell defines the number of gates and of saved values (cpp/formulas/gates.h). Flags select the results, because
// the pointer of an empty tensor is null too.
#pragma once

#include "ops/kind.h"

namespace fourfold {

struct RecurrentLayer {
  Place place;
  Kind kind;
  int64_t time;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  bool reverse;
  bool allow_tf32;         // whether float32 products may round their operands to TF32
  const int64_t* offsets;  // (time + 1) in the CPU's memory; or null: then row b of step t is row t * batch + b
  Input reset;             // bool (rows), whether to zero a row's state before its step; or null
  Input weight_ih;   // (gates * hidden_size, input_size)
  int64_t weight_ih_leading_dim;
  Input weight_hh;  // (gates * hidden_size, hidden_size)
  int64_t weight_hh_leading_dim;
  Input bias_ih;  // (gates * hidden_size), or null
  Input bias_hh;  // likewise
};

struct RecurrentForward {
  RecurrentLayer layer;
  Input prepacked;  // the weights packed by the backend's prepack, or null; if set, the layer has no weights
  Input input;   // (rows, input_size)
  Input h_0;     // (batch, hidden_size)
  Input c_0;     // (batch, hidden_size), or null if the cell has no c
  Output output;        // out (rows, hidden_size)
  Output h_n;           // out (batch, hidden_size): each row's state after its last step
  Output c_n;           // out, likewise, if the cell has a c
  bool keep;           // whether to write kept and cells, which are null otherwise
  Output kept;          // out (rows, kept * hidden_size): the gates' values for the backward
  Output cells;         // out (rows, hidden_size): the new c of each row, if the cell has one
};

struct RecurrentBackward {
  RecurrentLayer layer;
  Input input;
  Input h_0;
  Input c_0;
  Input output;
  Input kept;
  Input cells;
  Input grad_output;  // (rows, hidden_size); null means zero, also for the next two
  Input grad_h_n;     // (batch, hidden_size)
  Input grad_c_n;     // (batch, hidden_size)
  bool need_input;
  bool need_weights;
  bool need_states;
  Output grad_h_0;        // out (batch, hidden_size), if need_states
  Output grad_c_0;        // out, likewise, if the cell has a c
  Output grad_input;      // out (rows, input_size), if need_input; the members below, if need_weights
  Output grad_weight_ih;  // out, shaped like weight_ih
  int64_t grad_weight_ih_leading_dim;
  Output grad_weight_hh;
  int64_t grad_weight_hh_leading_dim;
  Output grad_bias_ih;  // out (gates * hidden_size), or null without that bias
  Output grad_bias_hh;
};

// The reset mask on devices with memory addresses, or null.
static inline const bool* resets_of(const RecurrentLayer& layer) { return static_cast<const bool*>(layer.reset); }

// Row b of step t is row first_row(t) + b, for b below active_rows(t). static, so that each CPU level has its own copy.
static inline int64_t first_row(const RecurrentLayer& layer, int64_t t) {
  return layer.offsets == nullptr ? t * layer.batch : layer.offsets[t];
}

static inline int64_t active_rows(const RecurrentLayer& layer, int64_t t) {
  return layer.offsets == nullptr ? layer.batch : layer.offsets[t + 1] - layer.offsets[t];
}

}  // namespace fourfold
