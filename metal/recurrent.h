// The kernels of a recurrent layer for any cell: one product of the input for the whole sequence, then one dispatch per
// step, encoded without waiting.
#pragma once

#include "encoder.h"
#include "ops/recurrent_products.h"

namespace fourfold::mps {

namespace formulas {
#include "formulas/gates.h"
#include "formulas/gru.h"
#include "formulas/lltm.h"
#include "formulas/lstm.h"
}  // namespace formulas

using formulas::Gru;
using formulas::Lltm;
using formulas::Lstm;

extern const Source recurrent_shaders;

// The host's description of a cell.
struct Cell {
  const char* label;  // the operator's name
  const char* type;   // its name in recurrent.metal
  GradientSlots slots;
  int64_t kept;
  bool has_c;
};

template <typename T>
const Cell& cell(const char* label, const char* type) {
  static const Cell it{label, type, gradient_slots<T>(), T::kept, T::has_c};
  return it;
}

// How a step's product is computed; the names are those of recurrent.metal.
enum class Way { given, few, tiles };

Way way_for(int64_t rows);

// Sets the pipeline of a step: the cell's forward or backward, for tensors of that kind.
void use_step(Encoder& encoder, bool forward, const Cell& cell, Kind kind, Way way);
// Dispatches it over (rows, hidden_size).
void dispatch_step(Encoder& encoder, bool forward, Way way, int64_t rows, int64_t hidden_size);

// The buffers of all steps of a forward; absent ones are null.
struct ForwardBuffers {
  Input h = {};
  Input h_0 = {};
  Input x = {};
  Input weights = {};
  Input bias = {};
  Input projection = {};
  Input product = {};
  Input reset = {};
  Input initial = {};
  Input state = {};
  Input output = {};
  Input kept = {};
  Input cells = {};
  Input h_n = {};
  Input c_n = {};

  void bind(Encoder& encoder) const;
  int has() const;
};

struct BackwardBuffers {
  Input weights = {};
  Input product = {};
  Input reset = {};
  Input kept = {};
  Input states = {};
  Input initial = {};
  Input grad_output = {};
  Input grad_h_n = {};
  Input grad_c_n = {};
  Input grad_state = {};
  Input grad_gates = {};
  Input grad_h_0 = {};
  Input grad_c_0 = {};

  void bind(Encoder& encoder) const;
  int has() const;
};

void recurrent_forward(const RecurrentForward& job, const Cell& cell);
void recurrent_backward(const RecurrentBackward& job, const Cell& cell);

// The Metal kernel table of a recurrent layer; it has no packed weights. `cell_of` returns the cell.
template <const Cell& (*cell_of)()>
inline constexpr RecurrentKernels recurrent_kernels{
    [](ScalarType, const RecurrentShape&) { return true; },
    [](const RecurrentForward& job) { recurrent_forward(job, cell_of()); },
    [](const RecurrentBackward& job) { recurrent_backward(job, cell_of()); },
    nullptr,
    nullptr,
};

}  // namespace fourfold::mps
