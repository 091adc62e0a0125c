// One step of a recurrent layer: its product and its cell in one kernel, or only the cell after torch's product. In the
// backward, the product multiplies the gates' gradients of the step that ran before.
#include "cell.h"

namespace fourfold {

struct Place {
  uint2 group;
  uint at;         // in the threadgroup
  uint lane;
  uint simdgroup;
};

template <typename T>
inline float factor_at(ForwardTensors<T> tensors, constant ForwardStep& job, Index row, Index k) {
  const Index size = job.hidden_size;
  if (k >= size) return float(tensors.x[row * job.input_size + k - size]);
  if ((job.has & has_reset) != 0 && tensors.reset[job.first + row]) return 0.0f;
  return row < job.known ? float(tensors.h[(job.before + row) * size + k]) : float(tensors.h_0[row * size + k]);
}

// torch has computed the product. Each thread computes one unit of one row.
struct Given {
  template <typename Cell, typename T>
  static void forward(ForwardTensors<T> tensors, constant ForwardStep& job, threadgroup float*, Place place) {
    const Index size = job.hidden_size;
    const Index element = Index(place.group.x) * step_threads + place.at;
    if (element >= job.rows * size) return;
    const Index row = element / size;
    const Index unit = element % size;
    const bool restarts = (job.has & has_reset) != 0 && tensors.reset[job.first + row];
    Product<Cell> product;
    for (int g = 0; g < Cell::gates; ++g) {
      product.of_gate[g] = restarts ? 0.0f : float(tensors.product[(row * Cell::gates + g) * size + unit]);
    }
    forward_unit<Cell>(tensors, job, row, unit, product);
  }

  template <typename Cell, typename T>
  static void backward(BackwardTensors<T> tensors, constant BackwardStep& job, threadgroup float*, Place place) {
    const Index size = job.hidden_size;
    const Index element = Index(place.group.x) * step_threads + place.at;
    const Index row = element / size;
    if (row >= metal::max(job.rows, job.later_rows)) return;
    const float product = row < job.later_rows ? float(tensors.product[element]) : 0.0f;
    backward_unit<Cell>(tensors, job, row, element % size, product);
  }
};

// For so few rows that most of a tile would be empty. In the forward, a simdgroup computes one unit, and its lanes
// split the depth. In the backward, each lane computes one unit, and the simdgroups split the depth.
struct Few {
  template <typename Cell, typename T>
  static void forward(ForwardTensors<T> tensors, constant ForwardStep& job, threadgroup float*, Place place) {
    const Index size = job.hidden_size;
    const Index unit = Index(place.group.x) * simdgroups + place.simdgroup;
    if (unit >= size) return;
    Product<Cell> sums[few_rows];
    for (int row = 0; row < few_rows; ++row) {
      for (int g = 0; g < Cell::gates; ++g) sums[row].of_gate[g] = 0.0f;
    }
    for (Index k = place.lane; k < size + job.input_size; k += simdgroup_lanes) {
      float factor[few_rows];
      for (int row = 0; row < few_rows; ++row) factor[row] = row < job.rows ? factor_at(tensors, job, row, k) : 0.0f;
      for (int g = 0; g < Cell::gates; ++g) {
        const float weight = float(tensors.weights[(g * size + unit) * job.leading_dim + k]);
        for (int row = 0; row < few_rows; ++row) sums[row].of_gate[g] += factor[row] * weight;
      }
    }
    Product<Cell> product;
    for (int row = 0; row < few_rows; ++row) {
      for (int g = 0; g < Cell::gates; ++g) {
        const float sum = metal::simd_sum(sums[row].of_gate[g]);
        if (int(place.lane) == row) product.of_gate[g] = sum;
      }
    }
    if (Index(place.lane) < job.rows) forward_unit<Cell>(tensors, job, place.lane, unit, product);
  }

  template <typename Cell, typename T>
  static void backward(
      BackwardTensors<T> tensors, constant BackwardStep& job, threadgroup float* shared, Place place) {
    const Index size = job.hidden_size;
    const Index unit = Index(place.group.x) * simdgroup_lanes + place.lane;
    float sums[few_rows] = {0.0f, 0.0f, 0.0f, 0.0f};
    const Index depth = unit < size && job.later_rows > 0 ? Cell::gates * size : 0;
    for (Index k = place.simdgroup; k < depth; k += simdgroups) {
      const float weight = float(tensors.weights[k * job.leading_dim + unit]);
      for (int row = 0; row < few_rows && row < job.later_rows; ++row) {
        sums[row] += float(tensors.grad_gates[hidden_gradient<Cell>(job.later_first + row, size) + k]) * weight;
      }
    }
    for (int row = 0; row < few_rows; ++row) {
      shared[(place.simdgroup * few_rows + row) * simdgroup_lanes + place.lane] = sums[row];
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    const Index row = place.simdgroup;
    if (unit >= size || row >= metal::max(job.rows, job.later_rows)) return;
    float product = 0.0f;
    for (int part = 0; part < simdgroups; ++part) {
      product += shared[(part * few_rows + row) * simdgroup_lanes + place.lane];
    }
    backward_unit<Cell>(tensors, job, row, unit, product);
  }

  // The index of the first of a row's gradients of the recurrent gates, which are in its last slots.
  template <typename Cell>
  static Index hidden_gradient(Index row, Index size) {
    return (row * Cell::grads + Cell::grads - Cell::gates) * size;
  }
};

// A threadgroup computes a tile of rows and units, with 8 x 8 simdgroup matrices. The factors are staged in threadgroup
// memory as float.
struct Tiles {
  template <typename Cell, typename T>
  static void forward(
      ForwardTensors<T> tensors, constant ForwardStep& job, threadgroup float* shared, Place place) {
    const Index size = job.hidden_size;
    const Index first_unit = Index(place.group.x) * tile_units;
    const Index first_row = Index(place.group.y) * tile_rows;
    const Index depth = size + job.input_size;
    threadgroup float* rows = shared;
    threadgroup float* columns = shared + tile_rows * tile_pitch;
    const uint row_part = place.simdgroup / 2 * 8;
    const uint unit_part = place.simdgroup % 2 * 8;
    metal::simdgroup_float8x8 sums[Cell::gates];
    for (int g = 0; g < Cell::gates; ++g) sums[g] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (Index k0 = 0; k0 < depth; k0 += tile_depth) {
      for (uint i = place.at; i < tile_rows * tile_depth; i += step_threads) {
        const Index row = first_row + i / tile_depth;
        const Index k = k0 + i % tile_depth;
        rows[i / tile_depth * tile_pitch + i % tile_depth] =
            row < job.rows && k < depth ? factor_at(tensors, job, row, k) : 0.0f;
      }
      for (uint i = place.at; i < Cell::gates * tile_units * tile_depth; i += step_threads) {
        const uint line = i / tile_depth;
        const Index unit = first_unit + line % tile_units;
        const Index k = k0 + i % tile_depth;
        const Index weight = (line / tile_units * size + unit) * job.leading_dim + k;
        columns[line * tile_pitch + i % tile_depth] = unit < size && k < depth ? float(tensors.weights[weight]) : 0.0f;
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      for (int k = 0; k < tile_depth; k += 8) {
        metal::simdgroup_float8x8 a;
        metal::simdgroup_load(a, rows + row_part * tile_pitch + k, tile_pitch);
        for (int g = 0; g < Cell::gates; ++g) {
          metal::simdgroup_float8x8 b;
          metal::simdgroup_load(
              b, columns + (g * tile_units + unit_part) * tile_pitch + k, tile_pitch, ulong2(0, 0), true);
          metal::simdgroup_multiply_accumulate(sums[g], a, b, sums[g]);
        }
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    for (int g = 0; g < Cell::gates; ++g) {
      metal::simdgroup_store(sums[g], shared + (g * tile_rows + row_part) * tile_units + unit_part, tile_units);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint i = place.at; i < tile_rows * tile_units; i += step_threads) {
      const Index row = first_row + i / tile_units;
      const Index unit = first_unit + i % tile_units;
      if (row >= job.rows || unit >= size) continue;
      Product<Cell> product;
      for (int g = 0; g < Cell::gates; ++g) product.of_gate[g] = shared[g * tile_rows * tile_units + i];
      forward_unit<Cell>(tensors, job, row, unit, product);
    }
  }

  template <typename Cell, typename T>
  static void backward(
      BackwardTensors<T> tensors, constant BackwardStep& job, threadgroup float* shared, Place place) {
    const Index size = job.hidden_size;
    const Index first_unit = Index(place.group.x) * tile_units;
    const Index first_row = Index(place.group.y) * tile_rows;
    const Index depth = first_row < job.later_rows ? Cell::gates * size : 0;
    threadgroup float* rows = shared;
    threadgroup float* columns = shared + tile_rows * tile_pitch;
    const uint row_part = place.simdgroup / 2 * 8;
    const uint unit_part = place.simdgroup % 2 * 8;
    metal::simdgroup_float8x8 sums = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (Index k0 = 0; k0 < depth; k0 += tile_depth) {
      for (uint i = place.at; i < tile_rows * tile_depth; i += step_threads) {
        const Index row = first_row + i / tile_depth;
        const Index k = k0 + i % tile_depth;
        const Index gradient = Few::hidden_gradient<Cell>(job.later_first + row, size) + k;
        rows[i / tile_depth * tile_pitch + i % tile_depth] =
            row < job.later_rows && k < depth ? float(tensors.grad_gates[gradient]) : 0.0f;
      }
      for (uint i = place.at; i < tile_depth * tile_units; i += step_threads) {
        const Index k = k0 + i / tile_units;
        const Index unit = first_unit + i % tile_units;
        columns[i] = unit < size && k < depth ? float(tensors.weights[k * job.leading_dim + unit]) : 0.0f;
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      for (int k = 0; k < tile_depth; k += 8) {
        metal::simdgroup_float8x8 a;
        metal::simdgroup_float8x8 b;
        metal::simdgroup_load(a, rows + row_part * tile_pitch + k, tile_pitch);
        metal::simdgroup_load(b, columns + k * tile_units + unit_part, tile_units);
        metal::simdgroup_multiply_accumulate(sums, a, b, sums);
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    metal::simdgroup_store(sums, shared + row_part * tile_units + unit_part, tile_units);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint i = place.at; i < tile_rows * tile_units; i += step_threads) {
      const Index row = first_row + i / tile_units;
      const Index unit = first_unit + i % tile_units;
      if (row >= metal::max(job.rows, job.later_rows) || unit >= size) continue;
      backward_unit<Cell>(tensors, job, row, unit, shared[i]);
    }
  }
};

template <typename Cell, typename T, typename How>
[[kernel, max_total_threads_per_threadgroup(step_threads)]] void forward_step(
    constant ForwardStep& job [[buffer(0)]], device const T* h [[buffer(1)]], device const T* h_0 [[buffer(2)]],
    device const T* x [[buffer(3)]], device const T* weights [[buffer(4)]], device const T* bias [[buffer(5)]],
    device const T* projection [[buffer(6)]], device const T* product [[buffer(7)]],
    device const bool* reset [[buffer(8)]], device const T* initial [[buffer(9)]], device float* state [[buffer(10)]],
    device T* output [[buffer(11)]], device T* kept [[buffer(12)]], device T* cells [[buffer(13)]],
    device T* h_n [[buffer(14)]], device T* c_n [[buffer(15)]], threadgroup float* shared [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const ForwardTensors<T> tensors = {h,     h_0,     x,     weights, bias, projection, product, reset,
                                     initial, state, output, kept,   cells, h_n,       c_n};
  const Place place = {group, at, lane, simdgroup};
  How::template forward<Cell>(tensors, job, shared, place);
}

template <typename Cell, typename T, typename How>
[[kernel, max_total_threads_per_threadgroup(step_threads)]] void backward_step(
    constant BackwardStep& job [[buffer(0)]], device const T* weights [[buffer(1)]],
    device const T* product [[buffer(2)]], device const bool* reset [[buffer(3)]], device const T* kept [[buffer(4)]],
    device const T* states [[buffer(5)]], device const T* initial [[buffer(6)]],
    device const T* grad_output [[buffer(7)]], device const T* grad_h_n [[buffer(8)]],
    device const T* grad_c_n [[buffer(9)]], device float* grad_state [[buffer(10)]],
    device T* grad_gates [[buffer(11)]], device T* grad_h_0 [[buffer(12)]], device T* grad_c_0 [[buffer(13)]],
    threadgroup float* shared [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint at [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const BackwardTensors<T> tensors = {weights,     product,  reset,    kept,       states,     initial, grad_output,
                                      grad_h_n,    grad_c_n, grad_state, grad_gates, grad_h_0, grad_c_0};
  const Place place = {group, at, lane, simdgroup};
  How::template backward<Cell>(tensors, job, shared, place);
}

// The h before each row of a step, or of several steps whose previous steps are consecutive too.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(step_threads)]] void previous_h(
    constant ForwardStep& job [[buffer(0)]], device const T* output [[buffer(1)]], device const T* h_0 [[buffer(2)]],
    device const bool* reset [[buffer(3)]], device T* out [[buffer(4)]], uint2 position [[thread_position_in_grid]]) {
  const Index size = job.hidden_size;
  const Index unit = position.x;
  const Index row = position.y;
  const bool restarts = (job.has & has_reset) != 0 && reset[job.first + row];
  T value = T(0.0f);
  if (!restarts) value = row < job.known ? output[(job.before + row) * size + unit] : h_0[row * size + unit];
  out[(job.first + row) * size + unit] = value;
}

}  // namespace fourfold
