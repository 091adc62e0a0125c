// A recurrent layer's body, for any cell: checks, allocation, and the call of a backend's kernels.
#pragma once

#include <tuple>
#include <vector>

#include "ops/aten.h"
#include "ops/recurrent_job.h"

namespace fourfold {

// A cell as the body sees it: cpp/formulas/gates.h says what the numbers are.
struct RecurrentCell {
  const char* op;
  const char* backward_op;
  int64_t gates;
  int64_t kept;
  bool has_c;
};

template <typename Cell>
constexpr RecurrentCell recurrent_cell(const char* op, const char* backward_op) {
  return {op, backward_op, Cell::gates, Cell::kept, Cell::has_c};
}

struct RecurrentShape;

struct RecurrentKernels {
  // Whether a 16-bit type is computed in as it is; otherwise in float32.
  bool (*computes)(ScalarType dtype, const RecurrentShape& shape);
  void (*forward)(const RecurrentForward& job);
  void (*backward)(const RecurrentBackward& job);
  // The weights as `forward` wants them, for calls that share them; null where a backend keeps none.
  int64_t (*prepacked_bytes)(const RecurrentLayer& layer);
  void (*prepack)(const RecurrentLayer& layer, void* prepacked);
  const char* (*level)() = nullptr;  // at which they were: others read them otherwise
};

// One call's arguments, as the user gave them but for the weights, which may be parts of a wider matrix.
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

// The sizes of one call, checked; packed input is (rows, input_size), otherwise (time, batch, input_size).
struct RecurrentShape {
  int64_t time;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  std::vector<int64_t> offsets;  // (time + 1) where packed, of each step's first row; otherwise empty

  int64_t rows() const { return offsets.empty() ? time * batch : offsets.back(); }
};

// Everything but the weights.
RecurrentShape check_sequence(
    const char* op, const RecurrentCell& cell, const Tensor& input, const Tensor& h_0, const OptionalTensor& c_0,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset);

// The same and the weights, where these are as torch.nn.LSTM and GRU have them: by x and by h apart, gate below gate.
RecurrentShape check_arguments(const char* op, const RecurrentCell& cell, const RecurrentArguments& arguments);

struct RecurrentOutputs {
  Tensor output;
  Tensor h_n;
  Tensor c_n;  // shape (0) where the cell has no c; likewise cells
  Tensor kept;
  Tensor cells;
};

RecurrentOutputs run_forward(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const OptionalTensor& prepacked, bool save_for_backward);

// A layer's weights, which may be parts of a wider matrix.
struct RecurrentWeights {
  Tensor weight_ih;
  Tensor weight_hh;
  OptionalTensor bias_ih;
  OptionalTensor bias_hh;
};

// What a backward is given beside the forward's arguments.
struct RecurrentGradients {
  OptionalTensor grad_output;
  OptionalTensor grad_h_n;
  OptionalTensor grad_c_n;
  Tensor output;
  Tensor kept;
  OptionalTensor cells;
};

// Where the weights' gradients go, which may be parts of a wider matrix; a bias's is left out where there is none, and
// all are unless they are wanted.
struct WeightGradients {
  bool wanted = false;
  OptionalTensor weight_ih;
  OptionalTensor weight_hh;
  OptionalTensor bias_ih;
  OptionalTensor bias_hh;
};

struct RecurrentResults {
  Tensor grad_input;  // each of shape (0) where it was not wanted
  Tensor grad_h_0;
  Tensor grad_c_0;  // likewise where the cell has no c
};

// A backward's mask, whose gradients are those of the input, the states and the parameters, in this order. The states'
// come of one sum, and so do the parameters'.
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

// What a call computes in, and what it keeps for its backward in: bfloat16 keeps bfloat16, whatever it is computed in.
ScalarType dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, ScalarType dtype);
ScalarType dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, const Tensor& input);
ScalarType kept_dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, const Tensor& input);

// Weights as kernels take them: rows that are each dense, so that a part of a wider matrix stays where it is.
Tensor dense_rows(const Tensor& matrix, ScalarType dtype);
int64_t leading_dim(const Tensor& matrix);
int64_t leading_dim(const OptionalTensor& matrix);

RecurrentResults run_backward(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentGradients& gradients, const WeightGradients& weights,
    const RecurrentMask& mask);

// Memory for the gradients of weights that lie as torch's.
WeightGradients weight_gradients(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentMask& mask);

}  // namespace fourfold
