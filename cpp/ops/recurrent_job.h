// What a recurrent layer's kernels are given: one layer, one direction, raw pointers, contiguous unless a leading
// dimension says otherwise. rows = the sum of all steps' batch sizes; row offsets[t] + b is row b of step t. Packed
// batches are sorted by length, so a step's rows are the first offsets[t + 1] - offsets[t] of the batch.
#pragma once

#include "ops/kind.h"

namespace fourfold {

struct RecurrentLayer {
  Place place;
  Kind kind;  // of every pointer but c, grad_h and grad_c, which carry sums and are float32 where kind is 16 bits wide
  int64_t time;
  int64_t batch;
  int64_t hidden_size;
  bool reverse;
  bool allow_tf32;         // whether products of float32 may round their factors to TF32
  const int64_t* offsets;  // (time + 1) in the CPU's memory, or null: row t * batch + b
  const void* weights;     // (gates * hidden_size, hidden_size), the recurrent part
  int64_t weights_leading_dim;
};

struct RecurrentForward {
  RecurrentLayer layer;
  const void* projection;  // (rows, gates * hidden_size): input projection with bias; may be the same as activated
  void* activated;         // out (rows, gates * hidden_size), or null: what the backward needs of each gate
  void* cells;             // out (rows, hidden_size), or null: the new c of each row
  void* output;            // out (rows, hidden_size)
  void* h;                 // in/out (batch, hidden_size): initial state, then final
  void* c;                 // in/out (batch, hidden_size)
};

struct RecurrentBackward {
  RecurrentLayer layer;
  const void* activated;    // (rows, gates * hidden_size)
  const void* cells;        // (rows, hidden_size)
  const void* grad_output;  // (rows, hidden_size), or null for zero
  void* grad_gates;         // out (rows, gates * hidden_size)
  void* grad_h;             // in/out (batch, hidden_size): the final state's gradient, then the initial one's
  void* grad_c;             // in/out (batch, hidden_size)
};

// Row b of step t is row first_row(t) + b, for b below active_rows(t). static: a CPU level's own copy.
static inline int64_t first_row(const RecurrentLayer& layer, int64_t t) {
  return layer.offsets == nullptr ? t * layer.batch : layer.offsets[t];
}

static inline int64_t active_rows(const RecurrentLayer& layer, int64_t t) {
  return layer.offsets == nullptr ? layer.batch : layer.offsets[t + 1] - layer.offsets[t];
}

}  // namespace fourfold
