#include "recurrent.h"

#include <algorithm>
#include <string>

#include "ops/path.h"

namespace fourfold::mps {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// From this many multiply-adds per step on, torch's product, with its own launch, is assumed to be faster. Not yet
// measured.
constexpr int64_t vendor_work = int64_t(1) << 26;

int64_t rows_of(const RecurrentLayer& layer) { return first_row(layer, layer.time); }

Tensor rows_at(const RecurrentLayer& layer, Input data, int64_t first, int64_t rows, int64_t columns) {
  const Input begin = data.behind(first * columns * element_size(layer.kind));
  return matrix(layer.place, begin, rows, columns, columns, layer.kind);
}

Tensor weight_hh_of(const RecurrentLayer& layer, int64_t gates) {
  return matrix(layer.place, layer.weight_hh, gates * layer.hidden_size, layer.hidden_size,
                layer.weight_hh_leading_dim, layer.kind);
}

Tensor empty_state(const RecurrentLayer& layer) {
  return empty(layer.place, {layer.batch, layer.hidden_size}, ScalarType::Float);
}

// The final state of an empty sequence: the initial one, or zeros.
void copy_state(const RecurrentLayer& layer, Output to, Input from) {
  const Tensor result = rows_at(layer, to, 0, layer.batch, layer.hidden_size);
  copy_into(result, from == nullptr ? zeros(layer.place, {layer.batch, layer.hidden_size}, dtype_of(layer.kind))
                                    : rows_at(layer, from, 0, layer.batch, layer.hidden_size));
}

struct BeforeStep {
  int64_t first;  // its first row in the sequence
  int64_t known;  // the number of rows with a previous step
};

BeforeStep before_step(const RecurrentLayer& layer, int64_t t) {
  const int64_t before = layer.reverse ? t + 1 : t - 1;
  if (before < 0 || before >= layer.time) return {0, 0};
  return {first_row(layer, before), std::min(active_rows(layer, t), active_rows(layer, before))};
}

// The number of the step's rows that have a next step.
int64_t rows_after(const RecurrentLayer& layer, int64_t t) {
  const int64_t after = layer.reverse ? t - 1 : t + 1;
  if (after < 0 || after >= layer.time) return 0;
  return std::min(active_rows(layer, t), active_rows(layer, after));
}

// Calls single(step) for each step with alone(step), and together(first, end) for each run of other steps.
template <typename Alone, typename Together, typename Single>
void for_runs(int64_t steps, const Alone& alone, const Together& together, const Single& single) {
  for (int64_t s = 0; s < steps;) {
    int64_t end = s;
    while (end < steps && !alone(end)) ++end;
    if (end > s) together(s, end);
    if (end < steps) single(end);
    s = end + 1;
  }
}

class Forward {
 public:
  Forward(const RecurrentForward& job, const Cell& cell)
      : layer_(job.layer),
        cell_(cell),
        projection_(input_projection(job, cell.slots.gates)),
        state_(empty_state(layer_)),
        buffers_{
            .h = job.output,
            .h_0 = job.h_0,
            .x = {},
            .weights = layer_.weight_hh,
            .bias = layer_.bias_hh,
            .projection = data_of(projection_),
            .product = {},
            .reset = layer_.reset,
            .initial = cell.has_c ? job.c_0 : job.h_0,
            .state = data_of(state_),
            .output = job.output,
            .kept = job.kept,
            .cells = job.cells,
            .h_n = job.h_n,
            .c_n = job.c_n,
        } {}

  void run() const {
    const auto encode_run = [&](int64_t begin, int64_t end) {
      encode(cell_.label, [&](Encoder& encoder) {
        buffers_.bind(encoder);
        for (int64_t s = begin; s < end; ++s) {
          const ForwardStep step = step_at(s);
          encode_step(encoder, step, way_for(step.rows));
        }
      });
    };
    for_runs(layer_.time, [&](int64_t s) { return multiplies_with_torch(step_at(s)); }, encode_run,
             [&](int64_t s) { run_with_torch(step_at(s)); });
  }

 private:
  ForwardStep step_at(int64_t s) const {
    const int64_t t = layer_.reverse ? layer_.time - 1 - s : s;
    const BeforeStep before = before_step(layer_, t);
    return {
        .rows = active_rows(layer_, t),
        .first = first_row(layer_, t),
        .before = before.first,
        .known = before.known,
        .ending = rows_after(layer_, t),
        .hidden_size = layer_.hidden_size,
        .input_size = 0,
        .leading_dim = layer_.weight_hh_leading_dim,
        .has = buffers_.has(),
    };
  }

  void encode_step(Encoder& encoder, const ForwardStep& step, Way way) const {
    use_step(encoder, true, cell_, layer_.kind, way);
    encoder.value(0, step);
    dispatch_step(encoder, true, way, step.rows, step.hidden_size);
  }

  // torch's product needs contiguous rows.
  bool multiplies_with_torch(const ForwardStep& step) const {
    const bool together = step.known == 0 || step.known == step.rows;
    return together && vendor_wins(step.rows * cell_.slots.gates * step.hidden_size * step.hidden_size, vendor_work);
  }

  void run_with_torch(const ForwardStep& step) const {
    const Tensor h = step.known == 0 ? rows_at(layer_, buffers_.h_0, 0, step.rows, step.hidden_size)
                                     : rows_at(layer_, buffers_.h, step.before, step.rows, step.hidden_size);
    const Tensor product = linear(h, weight_hh_of(layer_, cell_.slots.gates), std::nullopt);
    ForwardBuffers buffers = buffers_;
    buffers.product = data_of(product);
    encode(cell_.label, [&](Encoder& encoder) {
      buffers.bind(encoder);
      encode_step(encoder, step, Way::given);
    });
  }

  const RecurrentLayer& layer_;
  const Cell& cell_;
  Tensor projection_;
  Tensor state_;
  ForwardBuffers buffers_;
};

class Backward {
 public:
  Backward(const RecurrentBackward& job, const Cell& cell, const Tensor& grad_gates)
      : layer_(job.layer),
        cell_(cell),
        needs_states_(job.need_states),
        state_(empty_state(layer_)),
        buffers_{
            .weights = layer_.weight_hh,
            .product = {},
            .reset = layer_.reset,
            .kept = job.kept,
            .states = cell.has_c ? job.cells : job.output,
            .initial = cell.has_c ? job.c_0 : job.h_0,
            .grad_output = job.grad_output,
            .grad_h_n = job.grad_h_n,
            .grad_c_n = job.grad_c_n,
            .grad_state = data_of(state_),
            .grad_gates = data_of(grad_gates),
            .grad_h_0 = job.grad_h_0,
            .grad_c_0 = job.grad_c_0,
        } {}

  void run() const {
    // One more step for the gradients of h_0.
    const int64_t steps = layer_.time + (needs_states_ ? 1 : 0);
    const auto encode_run = [&](int64_t begin, int64_t end) {
      encode(cell_.label, [&](Encoder& encoder) {
        buffers_.bind(encoder);
        for (int64_t s = begin; s < end; ++s) {
          const BackwardStep step = step_at(s);
          encode_step(encoder, step, step.later_rows == 0 ? Way::given : way_for(rows_at_once(step)));
        }
      });
    };
    for_runs(steps, [&](int64_t s) { return multiplies_with_torch(step_at(s)); }, encode_run,
             [&](int64_t s) { run_with_torch(step_at(s)); });
  }

 private:
  static int64_t rows_at_once(const BackwardStep& step) { return std::max(step.rows, step.later_rows); }

  int64_t time_of(int64_t s) const { return layer_.reverse ? s : layer_.time - 1 - s; }

  BackwardStep step_at(int64_t s) const {
    BackwardStep step{};
    step.hidden_size = layer_.hidden_size;
    step.leading_dim = layer_.weight_hh_leading_dim;
    step.has = buffers_.has();
    if (s < layer_.time) {
      const int64_t t = time_of(s);
      const BeforeStep before = before_step(layer_, t);
      step.rows = active_rows(layer_, t);
      step.first = first_row(layer_, t);
      step.before = before.first;
      step.known = before.known;
    }
    if (s > 0) {
      const int64_t later = time_of(s - 1);
      step.later_rows = active_rows(layer_, later);
      step.later_first = first_row(layer_, later);
    }
    return step;
  }

  void encode_step(Encoder& encoder, const BackwardStep& step, Way way) const {
    use_step(encoder, false, cell_, layer_.kind, way);
    encoder.value(0, step);
    dispatch_step(encoder, false, way, rows_at_once(step), step.hidden_size);
  }

  bool multiplies_with_torch(const BackwardStep& step) const {
    return step.later_rows > 0 &&
           vendor_wins(step.later_rows * cell_.slots.gates * step.hidden_size * step.hidden_size, vendor_work);
  }

  void run_with_torch(const BackwardStep& step) const {
    const int64_t columns = cell_.slots.slots * step.hidden_size;
    const int64_t hidden = cell_.slots.gates * step.hidden_size;
    const Tensor gradients = rows_at(layer_, buffers_.grad_gates, step.later_first, step.later_rows, columns);
    const Tensor product = mm(narrow(gradients, 1, columns - hidden, hidden), weight_hh_of(layer_, cell_.slots.gates));
    BackwardBuffers buffers = buffers_;
    buffers.product = data_of(product);
    encode(cell_.label, [&](Encoder& encoder) {
      buffers.bind(encoder);
      encode_step(encoder, step, Way::given);
    });
  }

  const RecurrentLayer& layer_;
  const Cell& cell_;
  bool needs_states_;
  Tensor state_;
  BackwardBuffers buffers_;
};

void encode_previous_h(Encoder& encoder, const ForwardStep& step) {
  encoder.value(0, step);
  encoder.threads(step.hidden_size, step.rows, simdgroup_lanes);
}

// The h before each row of the sequence: (rows, hidden_size).
Tensor previous_h(const RecurrentBackward& job, const Cell& cell) {
  const RecurrentLayer& layer = job.layer;
  const Tensor result = empty(layer.place, {rows_of(layer), layer.hidden_size}, dtype_of(layer.kind));
  if (result.numel() == 0) return result;
  encode(cell.label, [&](Encoder& encoder) {
    encoder.use(recurrent_shaders, std::string("previous_h<") + type_name(layer.kind) + ">");
    encoder.buffer(1, job.output);
    encoder.buffer(2, job.h_0);
    encoder.buffer(3, layer.reset);
    encoder.buffer(4, out_data(result));
    ForwardStep step{};
    step.hidden_size = layer.hidden_size;
    step.has = layer.reset == nullptr ? 0 : has_reset;
    for (int64_t t = 0; t < layer.time; ++t) {
      const BeforeStep before = before_step(layer, t);
      step.rows = active_rows(layer, t);
      step.first = first_row(layer, t);
      step.before = before.first;
      step.known = before.known;
      // Consecutive steps of one length whose previous steps are consecutive too share a dispatch.
      while (layer.offsets == nullptr && step.known > 0 && t + 1 < layer.time && before_step(layer, t + 1).known > 0) {
        step.rows += layer.batch;
        step.known += layer.batch;
        ++t;
      }
      encode_previous_h(encoder, step);
    }
  });
  return result;
}

void refuse_persistent_path() {
  if (forced_path() != Path::persistent) return;
  fail("fourfold: expected FOURFOLD_GPU_PATH to be step or vendor for a recurrent layer on an Apple GPU, where each "
       "step is a launch, but got persistent; set one of these, or unset the variable");
}

// `out` may be a view of a wider matrix, into which torch's products on MPS may write incorrectly.
void multiply_and_copy(const Tensor& out, const Tensor& a, const Tensor& b) { copy_into(out, mm(a, b)); }

}  // namespace

Way way_for(int64_t rows) { return rows <= few_rows ? Way::few : Way::tiles; }

void use_step(Encoder& encoder, bool forward, const Cell& cell, Kind kind, Way way) {
  const char* name = way == Way::given ? "Given" : way == Way::few ? "Few" : "Tiles";
  encoder.use(recurrent_shaders, std::string(forward ? "forward_step<" : "backward_step<") + cell.type + ", " +
                                     type_name(kind) + ", " + name + ">");
  encoder.threadgroup_floats((tile_rows + cell.slots.gates * tile_units) * tile_pitch);
}

void dispatch_step(Encoder& encoder, bool forward, Way way, int64_t rows, int64_t hidden_size) {
  switch (way) {
    case Way::given: return encoder.groups(divide_up(rows * hidden_size, step_threads), 1, step_threads);
    case Way::few: return encoder.groups(divide_up(hidden_size, forward ? few_rows : simdgroup_lanes), 1, step_threads);
    case Way::tiles:
      return encoder.groups(divide_up(hidden_size, tile_units), divide_up(rows, tile_rows), step_threads);
  }
}

void ForwardBuffers::bind(Encoder& encoder) const {
  // From index 1 on. The output comes before them at 0, as a substitute for absent ones.
  const Input all[] = {output, h,       h_0,   x,      weights, bias,  projection, product,
                       reset,  initial, state, output, kept,    cells, h_n,        c_n};
  for (int k = 0; k < static_cast<int>(std::size(all)); ++k) encoder.buffer(k, all[k]);
}

int ForwardBuffers::has() const {
  return (bias == nullptr ? 0 : has_bias) | (projection == nullptr ? 0 : has_projection) |
         (reset == nullptr ? 0 : has_reset) | (kept == nullptr ? 0 : has_kept) | (cells == nullptr ? 0 : has_cells);
}

void BackwardBuffers::bind(Encoder& encoder) const {
  const Input all[] = {grad_gates,  weights,  product,  reset,      kept,       states,   initial,
                       grad_output, grad_h_n, grad_c_n, grad_state, grad_gates, grad_h_0, grad_c_0};
  for (int k = 0; k < static_cast<int>(std::size(all)); ++k) encoder.buffer(k, all[k]);
}

int BackwardBuffers::has() const {
  return (reset == nullptr ? 0 : has_reset) | (initial == nullptr ? 0 : has_initial) |
         (grad_output == nullptr ? 0 : has_grad_output) | (grad_h_n == nullptr ? 0 : has_grad_h) |
         (grad_c_n == nullptr ? 0 : has_grad_c) | (grad_h_0 == nullptr && grad_c_0 == nullptr ? 0 : has_grad_initial);
}

void recurrent_forward(const RecurrentForward& job, const Cell& cell) {
  const RecurrentLayer& layer = job.layer;
  refuse_persistent_path();
  if (layer.time > 0) return Forward(job, cell).run();
  copy_state(layer, job.h_n, job.h_0);
  if (cell.has_c) copy_state(layer, job.c_n, job.c_0);
}

void recurrent_backward(const RecurrentBackward& job, const Cell& cell) {
  const RecurrentLayer& layer = job.layer;
  refuse_persistent_path();
  const Tensor grad_gates =
      empty(layer.place, {rows_of(layer), cell.slots.slots * layer.hidden_size}, dtype_of(layer.kind));
  if (grad_gates.numel() > 0) {
    Backward(job, cell, grad_gates).run();
  } else if (job.need_states) {
    copy_state(layer, job.grad_h_0, job.grad_h_n);
    if (cell.has_c) copy_state(layer, job.grad_c_0, job.grad_c_n);
  }
  const OptionalTensor h = job.need_weights ? OptionalTensor(previous_h(job, cell)) : std::nullopt;
  finish_gradients(job, cell.slots, grad_gates, h, multiply_and_copy);
}

}  // namespace fourfold::mps
