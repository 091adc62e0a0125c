// The operator body of recurrent layers, for any cell: checks, allocation, and the call of a backend's kernels.
#pragma once

#include <tuple>
#include <vector>

#include "ops/aten.h"
#include "ops/recurrent_job.h"

namespace fourfold {

// The description of a cell. cpp/formulas/gates.h explains the numbers.
struct RecurrentCell {
  const char* op;
  const char* backward_op;
  int64_t gates;
  int64_t kept;
  bool has_c;
};

struct RecurrentShape;

struct RecurrentKernels {
  // Whether kernels compute in a 16-bit dtype; otherwise it is converted to float32.
  bool (*computes)(ScalarType dtype, const RecurrentShape& shape);
  void (*forward)(const RecurrentForward& job);
  void (*backward)(const RecurrentBackward& job);
  // Packed weights, to be reused in many calls of `forward`; null if the backend has none.
  int64_t (*prepacked_bytes)(const RecurrentLayer& layer);
  void (*prepack)(const RecurrentLayer& layer, void* prepacked);
  const char* (*level)() = nullptr;  // the CPU level of packed weights: each level has its own layout
};

// One call's arguments, as passed by the user, except that weights may be blocks of a wider matrix.
struct RecurrentArguments {
  Tensor input;
  Tensor h_0;
  OptionalTensor c_0;
  Tensor weight_ih;
  Tensor weight_hh;
  OptionalTensor bias_ih;
  OptionalTensor bias_hh;
  bool reverse;
  OptionalTensor batch_sizes;
  OptionalTensor reset;
  bool allow_tf32;
};

// The checked sizes of one call. Packed input is (rows, input_size), other input (time, batch, input_size).
struct RecurrentShape {
  int64_t time;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  std::vector<int64_t> offsets;  // for packed input, (time + 1) offsets of each step's first row; otherwise empty

  int64_t rows() const { return offsets.empty() ? time * batch : offsets.back(); }
};

// Checks everything but the weights.
RecurrentShape check_sequence(
    const char* op, const RecurrentCell& cell, const Tensor& input, const Tensor& h_0, const OptionalTensor& c_0,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset);

// Also checks weights in the layout of torch.nn.LSTM and GRU: separate for x and h, gates stacked along the rows.
RecurrentShape check_arguments(const char* op, const RecurrentCell& cell, const RecurrentArguments& arguments);

struct RecurrentOutputs {
  Tensor output;
  Tensor h_n;
  Tensor c_n;  // shape (0) if the cell has no c; likewise cells
  Tensor kept;
  Tensor cells;
};

RecurrentOutputs run_forward(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const OptionalTensor& prepacked, bool save_for_backward);

// A layer's weights, which may be blocks of a wider matrix.
struct RecurrentWeights {
  Tensor weight_ih;
  Tensor weight_hh;
  OptionalTensor bias_ih;
  OptionalTensor bias_hh;
};

// The arguments of a backward besides the forward's.
struct RecurrentGradients {
  OptionalTensor grad_output;
  OptionalTensor grad_h_n;
  OptionalTensor grad_c_n;
  Tensor output;
  Tensor kept;
  OptionalTensor cells;
};

// Memory for the weights' gradients, which may be blocks of a wider matrix. Absent for missing biases, and if not
// wanted.
struct WeightGradients {
  bool wanted = false;
  OptionalTensor weight_ih;
  OptionalTensor weight_hh;
  OptionalTensor bias_ih;
  OptionalTensor bias_hh;
};

struct RecurrentResults {
  Tensor grad_input;  // each has shape (0) if not wanted
  Tensor grad_h_0;
  Tensor grad_c_0;  // also shape (0) if the cell has no c
};

// A backward's output_mask: gradients of the input, the states and the parameters, in this order. The states' gradients
// are computed together, and so are the parameters'.
class RecurrentMask {
 public:
  RecurrentMask(const RecurrentCell& cell, const std::vector<bool>& output_mask, size_t parameters);

  bool input() const { return mask_[0]; }
  bool states() const { return mask_[1] || (has_c_ && mask_[2]); }
  bool h_0() const { return mask_[1]; }
  bool c_0() const { return has_c_ && mask_[2]; }
  bool parameter(size_t k) const { return mask_[(has_c_ ? 3 : 2) + k]; }
  bool parameters() const;

 private:
  const std::vector<bool>& mask_;
  bool has_c_;
};

// The compute dtype of a call, and the dtype of the tensors that it saves: bfloat16 for bfloat16 inputs, even if the
// call computes in float32.
ScalarType dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, ScalarType dtype);
ScalarType dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, const Tensor& input);
ScalarType kept_dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, const Tensor& input);

// Weights prepared for kernels: only the rows must be contiguous, so a block of a wider matrix needs no copy.
Tensor dense_rows(const Tensor& matrix, ScalarType dtype);
int64_t leading_dim(const Tensor& matrix);
int64_t leading_dim(const OptionalTensor& matrix);

RecurrentResults run_backward(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentGradients& gradients, const WeightGradients& weights,
    const RecurrentMask& mask);

// Allocates the gradients of weights in torch's layout.
WeightGradients weight_gradients(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentMask& mask);

}  // namespace fourfold
