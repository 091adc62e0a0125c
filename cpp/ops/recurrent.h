// What the recurrent operators share around their kernels.
#pragma once

#include <vector>

#include "ops/aten.h"
#include "ops/recurrent_job.h"

namespace fourfold {

// [h, x] side by side: (rows, hidden_size) and (rows, input_size) give (rows, hidden_size + input_size). A backend where
// that copy costs less than a second product has one.
using Concatenate = Tensor(const Tensor& h, const Tensor& x);
Tensor concatenate_on_cpu(const Tensor& h, const Tensor& x);

struct RecurrentKernels {
  bool low_precision;  // whether float16 and bfloat16 are computed in as they are; otherwise in float32
  void (*forward)(const RecurrentForward& job);
  void (*backward)(const RecurrentBackward& job);
  void (*copy)(Place place, void* to, const void* from, size_t bytes);
  Concatenate* concatenate;  // or null
};

// Where each step's rows are among a sequence's rows. Packed batches are sorted by length: the rows of a step are the
// first of the batch.
struct Steps {
  int64_t time;
  int64_t batch;
  std::vector<int64_t> offsets;  // (time + 1) when packed; otherwise empty, and each step has the whole batch

  int64_t first_row(int64_t t) const { return offsets.empty() ? t * batch : offsets[static_cast<size_t>(t)]; }
  int64_t rows(int64_t t) const { return first_row(t + 1) - first_row(t); }
};

// The h that each row of a sequence started from: (rows, hidden_size), from its output (rows, hidden_size) and initial
// state (batch, hidden_size).
Tensor previous_h(
    const RecurrentKernels& kernels, const Tensor& output, const Tensor& h_0, const Steps& steps, bool reverse);

// What follows once a layer's gates have their gradients, in the dtype of grad_gates; the parts not needed have shape
// (0). grad_gates (rows, gates * hidden_size), weights (gates * hidden_size, hidden_size + input_size), h (rows,
// hidden_size) and x (rows, input_size) are what the gates were made of.
struct InputGradients {
  Tensor x;
  Tensor weights;
  Tensor bias;  // of bias's own shape
};

InputGradients input_gradients(
    Concatenate* concatenate, const Tensor& grad_gates, const Tensor& weights, const OptionalTensor& bias, const Tensor& h, const Tensor& x,
    bool need_x, bool need_weights);

}  // namespace fourfold
