// What a recurrent layer's kernels are given: one layer, one direction, contiguous unless a leading
// dimension says otherwise, all of one kind. rows = the sum of all steps' batch sizes; row offsets[t] + b is row b of
// step t. Packed batches are sorted by length, so a step's rows are the first offsets[t + 1] - offsets[t] of the batch.
//
// How many gates there are, and what is kept, is the cell's (cpp/formulas/gates.h). What a call wants is said by flags:
// an empty tensor's pointer is null, so a null output tells nothing of the others.
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
  bool allow_tf32;         // whether products of float32 may round their factors to TF32
  const int64_t* offsets;  // (time + 1) in the CPU's memory, or null: row t * batch + b
  Input reset;             // bool (rows) or null: whether a row's state is zero before its step
  Input weight_ih;   // (gates * hidden_size, input_size)
  int64_t weight_ih_leading_dim;
  Input weight_hh;  // (gates * hidden_size, hidden_size)
  int64_t weight_hh_leading_dim;
  Input bias_ih;  // (gates * hidden_size), or null
  Input bias_hh;  // likewise
};

struct RecurrentForward {
  RecurrentLayer layer;
  Input prepacked;  // what the backend's prepack made of the same weights, which the layer then lacks; or null
  Input input;   // (rows, input_size)
  Input h_0;     // (batch, hidden_size)
  Input c_0;     // (batch, hidden_size), or null where the cell has no c
  Output output;        // out (rows, hidden_size)
  Output h_n;           // out (batch, hidden_size): of each row after its last step
  Output c_n;           // out likewise, where the cell has a c
  bool keep;           // whether the next two are written; otherwise they are null
  Output kept;          // out (rows, kept * hidden_size): what the backward needs of each gate
  Output cells;         // out (rows, hidden_size): the new c of each row, where the cell has one
};

struct RecurrentBackward {
  RecurrentLayer layer;
  Input input;
  Input h_0;
  Input c_0;
  Input output;
  Input kept;
  Input cells;
  Input grad_output;  // (rows, hidden_size); this and the next two: null for zero
  Input grad_h_n;     // (batch, hidden_size)
  Input grad_c_n;     // (batch, hidden_size)
  bool need_input;
  bool need_weights;
  bool need_states;
  Output grad_h_0;        // out (batch, hidden_size), written if need_states
  Output grad_c_0;        // out likewise, where the cell has a c
  Output grad_input;      // out (rows, input_size), written if need_input; what follows, if need_weights
  Output grad_weight_ih;  // out, as weight_ih
  int64_t grad_weight_ih_leading_dim;
  Output grad_weight_hh;
  int64_t grad_weight_hh_leading_dim;
  Output grad_bias_ih;  // out (gates * hidden_size), or null where there is no such bias
  Output grad_bias_hh;
};

// Whether a row's state is zero before its step, in memory that has an address; null for no row's.
static inline const bool* resets_of(const RecurrentLayer& layer) { return static_cast<const bool*>(layer.reset); }

// Row b of step t is row first_row(t) + b, for b below active_rows(t). static: a CPU level's own copy.
static inline int64_t first_row(const RecurrentLayer& layer, int64_t t) {
  return layer.offsets == nullptr ? t * layer.batch : layer.offsets[t];
}

static inline int64_t active_rows(const RecurrentLayer& layer, int64_t t) {
  return layer.offsets == nullptr ? layer.batch : layer.offsets[t + 1] - layer.offsets[t];
}

}  // namespace fourfold
