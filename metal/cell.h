// A cell applied to one unit of one row, and its derivative. cpp/formulas/gates.h defines Cells. T is the type in
// memory; the values that a loop carries from step to step are float.
#pragma once

#include "math.h"

namespace fourfold {
#include "jobs.h"

#include "formulas/gates.h"
#include "formulas/gru.h"
#include "formulas/lltm.h"
#include "formulas/lstm.h"

// Rows are gate by gate, then unit by unit.
template <typename T>
struct ForwardTensors {
  device const T* h;               // (rows of the sequence, hidden_size): of earlier steps
  device const T* h_0;             // (batch, hidden_size)
  device const T* x;               // (rows, input_size), if the product includes x
  device const T* weights;         // (gates * hidden_size, hidden_size + input_size)
  device const T* bias;            // (gates * hidden_size)
  device const T* projection;      // (rows of the sequence, gates * hidden_size): the input's part of the gates
  device const T* product;         // (rows, gates * hidden_size): the recurrent part, if torch has computed it
  device const bool* reset;        // (rows of the sequence)
  device const T* initial;         // (batch, hidden_size): c_0, or h_0 if the cell has no c
  device float* state;             // (batch, hidden_size): carried from step to step
  device T* output;                // out (rows of the sequence, hidden_size)
  device T* kept;                  // out (rows of the sequence, kept * hidden_size)
  device T* cells;                 // out (rows of the sequence, hidden_size)
  device T* h_n;                   // out (batch, hidden_size)
  device T* c_n;                   // out (batch, hidden_size), if the cell has a c
};

template <typename T>
struct BackwardTensors {
  device const T* weights;
  device const T* product;         // (later rows, hidden_size): the gradient of h, if torch has computed it
  device const bool* reset;
  device const T* kept;
  device const T* states;          // (rows of the sequence, hidden_size): c, or h if the cell has no c
  device const T* initial;
  device const T* grad_output;     // (rows of the sequence, hidden_size)
  device const T* grad_h_n;        // (batch, hidden_size)
  device const T* grad_c_n;
  device float* grad_state;        // (batch, hidden_size): carried from step to step
  device T* grad_gates;            // out (rows of the sequence, grads * hidden_size)
  device T* grad_h_0;              // out (batch, hidden_size)
  device T* grad_c_0;              // out, likewise, if the cell has a c
};

template <typename Cell>
struct Product {
  float of_gate[Cell::gates];
};

template <typename Cell, typename T>
inline void forward_unit(
    ForwardTensors<T> tensors, constant ForwardStep& job, Index row, Index unit, Product<Cell> product) {
  const Index size = job.hidden_size;
  const Index at = row * size + unit;
  const Index in_sequence = job.first + row;
  const bool restarts = (job.has & has_reset) != 0 && tensors.reset[in_sequence];
  Values<float, Cell::gates> input;
  Values<float, Cell::gates> hidden;
  for (int g = 0; g < Cell::gates; ++g) {
    const Index gate = (in_sequence * Cell::gates + g) * size + unit;
    input.v[g] = (job.has & has_projection) != 0 ? float(tensors.projection[gate]) : 0.0f;
    hidden.v[g] = product.of_gate[g] + ((job.has & has_bias) != 0 ? float(tensors.bias[g * size + unit]) : 0.0f);
  }
  float state = 0.0f;
  if (!restarts) state = row < job.known ? tensors.state[at] : float(tensors.initial[at]);
  const CellStep<float, Cell::kept> next = Cell::forward(input, hidden, state);
  tensors.output[in_sequence * size + unit] = T(next.h);
  if ((job.has & has_cells) != 0) tensors.cells[in_sequence * size + unit] = T(next.state);
  for (int k = 0; k < Cell::kept && (job.has & has_kept) != 0; ++k) {
    tensors.kept[(in_sequence * Cell::kept + k) * size + unit] = T(next.kept.v[k]);
  }
  if (row < job.ending) {
    tensors.state[at] = next.state;
  } else {
    tensors.h_n[at] = T(next.h);
    if (Cell::has_c) tensors.c_n[at] = T(next.state);
  }
}

// product: the gradient of h from the gates' gradients of the later step.
template <typename Cell, typename T>
inline void backward_unit(
    BackwardTensors<T> tensors, constant BackwardStep& job, Index row, Index unit, float product) {
  const Index size = job.hidden_size;
  const Index at = row * size + unit;
  const bool resets = (job.has & has_reset) != 0;
  float grad_h = 0.0f;
  float grad_state = 0.0f;
  if (row < job.later_rows) {
    if (!(resets && tensors.reset[job.later_first + row])) grad_h = product;
    grad_state = tensors.grad_state[at];
  } else {
    if ((job.has & has_grad_h) != 0) grad_h = float(tensors.grad_h_n[at]);
    if ((job.has & has_grad_c) != 0) grad_state = float(tensors.grad_c_n[at]);
  }
  const bool wanted = (job.has & has_grad_initial) != 0;
  if (row >= job.rows) {
    if (wanted) tensors.grad_h_0[at] = T(Cell::has_c ? grad_h : grad_h + grad_state);
    return;
  }
  const Index in_sequence = job.first + row;
  const bool restarts = resets && tensors.reset[in_sequence];
  Values<float, Cell::kept> kept;
  for (int k = 0; k < Cell::kept; ++k) {
    kept.v[k] = float(tensors.kept[(in_sequence * Cell::kept + k) * size + unit]);
  }
  float state = 0.0f;
  if (!restarts && row < job.known) {
    state = float(tensors.states[(job.before + row) * size + unit]);
  } else if (!restarts && (job.has & has_initial) != 0) {
    state = float(tensors.initial[at]);
  }
  if ((job.has & has_grad_output) != 0) grad_h += float(tensors.grad_output[in_sequence * size + unit]);
  const float next_state = float(tensors.states[in_sequence * size + unit]);
  const CellGradients<float, Cell::grads> result = Cell::backward(kept, state, next_state, grad_h, grad_state);
  for (int g = 0; g < Cell::grads; ++g) {
    tensors.grad_gates[(in_sequence * Cell::grads + g) * size + unit] = T(result.gates.v[g]);
  }
  const float grad_before = restarts ? 0.0f : result.state;
  // Rows without a previous step are finished; for cells without c the later product still has to be added.
  if (Cell::has_c && row >= job.known) {
    if (wanted) tensors.grad_c_0[at] = T(grad_before);
  } else {
    tensors.grad_state[at] = grad_before;
  }
}

}  // namespace fourfold
