#include "ops/lltm_cell.h"

#include "ops/backend.h"
#include "ops/path.h"
#include "ops/registration.h"
#include "recurrent.h"

namespace fourfold::mps {
namespace {

const Cell& lltm_cell_cell() { return cell<Lltm>("fourfold::lltm_cell", "Lltm"); }

// From this many multiply-adds on, torch's products, with their own launches, are assumed to be faster. Not yet
// measured.
constexpr int64_t vendor_work = int64_t(1) << 26;

void encode_forward(const ForwardBuffers& buffers, ForwardStep step, Kind kind, Way way) {
  if (step.rows * step.hidden_size == 0) return;
  step.has = buffers.has();
  encode(lltm_cell_cell().label, [&](Encoder& encoder) {
    buffers.bind(encoder);
    use_step(encoder, true, lltm_cell_cell(), kind, way);
    encoder.value(0, step);
    dispatch_step(encoder, true, way, step.rows, step.hidden_size);
  });
}

// Runs a sequence of one step, in which all rows start and end.
LltmCellOutputs forward(const LltmCellInputs& in, bool save_for_backward) {
  const Place place = place_of(in.x);
  const ScalarType dtype = in.x.scalar_type();
  const int64_t rows = in.h.size(0);
  const int64_t hidden_size = in.h.size(1);
  const int64_t input_size = in.x.size(1);
  const LltmCellOutputs out{
      empty(place, {rows, hidden_size}, dtype), empty(place, {rows, hidden_size}, dtype),
      save_for_backward ? empty(place, {rows, Lltm::kept * hidden_size}, dtype) : nothing(place, dtype)};
  ForwardBuffers buffers{
      .h_0 = data_of(in.h),
      .x = data_of(in.x),
      .weights = data_of(in.weights),
      .bias = data_of(in.bias),
      .initial = data_of(in.c),
      .output = out_data(out.next_h),
      .kept = save_for_backward ? Input(out_data(out.kept)) : Input(),
      .h_n = out_data(out.next_h),
      .c_n = out_data(out.next_c),
  };
  ForwardStep step{};
  step.rows = rows;
  step.hidden_size = hidden_size;
  step.input_size = input_size;
  step.leading_dim = hidden_size + input_size;
  const Kind kind = kind_of(dtype);
  if (!vendor_wins(rows * Lltm::gates * hidden_size * (hidden_size + input_size), vendor_work)) {
    encode_forward(buffers, step, kind, way_for(rows));
    return out;
  }
  // Two products with parts of the weights instead of one with [h, x], which would have to be concatenated.
  const Tensor projection = linear(in.x, narrow(in.weights, 1, hidden_size, input_size), in.bias);
  const Tensor product = linear(in.h, narrow(in.weights, 1, 0, hidden_size), std::nullopt);
  buffers.projection = data_of(projection);
  buffers.product = data_of(product);
  buffers.bias = {};
  encode_forward(buffers, step, kind, Way::given);
  return out;
}

void backward(const LltmCellBackward& job) {
  if (job.batch * job.hidden_size == 0) return;
  const BackwardBuffers buffers{
      .kept = job.kept,
      .states = job.next_c,
      .grad_h_n = job.grad_h,
      .grad_c_n = job.grad_next_c,
      .grad_gates = job.grad_gates,
      .grad_c_0 = job.grad_c,
  };
  BackwardStep step{};
  step.rows = job.batch;
  step.hidden_size = job.hidden_size;
  step.has = buffers.has();
  encode(lltm_cell_cell().label, [&](Encoder& encoder) {
    buffers.bind(encoder);
    use_step(encoder, false, lltm_cell_cell(), job.kind, Way::given);
    encoder.value(0, step);
    dispatch_step(encoder, false, Way::given, job.batch, job.hidden_size);
  });
}

// Concatenates [h, x], because a product into columns of a wider matrix would need a copy anyway.
Tensor concatenate(const Tensor& h, const Tensor& x) {
  const int64_t hidden_size = h.size(1);
  const Tensor both = empty(place_of(x), {x.size(0), hidden_size + x.size(1)}, x.scalar_type());
  copy_into(narrow(both, 1, 0, hidden_size), h);
  copy_into(narrow(both, 1, hidden_size, x.size(1)), x);
  return both;
}

constexpr LltmCellKernels lltm_cell_kernels{true, forward, backward, concatenate};

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  m.impl("lltm_cell", FOURFOLD_BOX(lltm_cell, mps::lltm_cell_kernels));
  m.impl("lltm_cell_backward", FOURFOLD_BOX(lltm_cell_backward, mps::lltm_cell_kernels));
}
