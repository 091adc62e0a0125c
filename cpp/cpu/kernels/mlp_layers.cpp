#include "cpu/kernels/mlp_layers.h"

#include <cstring>

#include "cpu/kernels/activations.h"
#include "cpu/kernels/dense_product.h"
#include "cpu/kernels/products.h"
#include "cpu/dense.h"
#include "cpu/parallel.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

// out = bias + a Wᵀ with unpacked W (columns, depth).
template <typename S>
void product_in_place(
    Rows<const S> a, int64_t rows, const S* weights, int64_t depth, int64_t columns, const S* bias, Rows<S> out) {
  const Scratch<S> room(Unpacked<1, S>::room);
  alignas(64) S sums[unpacked_rows * lanes<S>];
  for_groups(0, rows, unpacked_rows, [&](int64_t first, int64_t count) {
    const S* row[unpacked_rows];
    for (int64_t r = 0; r < count; ++r) row[r] = a.data + (first + r) * a.step;
    for (int64_t unit = 0; unit < columns; unit += lanes<S>) {
      const int64_t units = lanes_left<S>(columns, unit);
      const UnpackedBlock<S> block{weights + unit * depth, depth, 0, bias == nullptr ? nullptr : bias + unit, 0, units, depth};
      Unpacked<1, S>::by_rows(row, count, block, room.get(), {sums, lanes<S>});
      for (int64_t r = 0; r < count; ++r) {
        store_lanes(out.data + (first + r) * out.step + unit, Vectorized<S>::loadu(sums + r * lanes<S>), units);
      }
    }
  });
}

template <typename S>
void activate_rows(Activation activation, int64_t rows, int64_t columns, Rows<S> to, Rows<const S> from) {
  visit_activation(activation, [&](auto f) {
    for (int64_t row = 0; row < rows; ++row) {
      map<S>(columns, to.data + row * to.step, [&](const Vec<S>& z) { return f.value(z); },
             Elements<S>{from.data + row * from.step, 1});
    }
  });
}

template <typename S>
void activate_rows_backward(
    Activation activation, int64_t rows, int64_t columns, Rows<S> to, Rows<const S> grad, Rows<const S> kept) {
  visit_activation(activation, [&](auto f) {
    for (int64_t row = 0; row < rows; ++row) {
      map<S>(columns, to.data + row * to.step, [&](const Vec<S>& g, const Vec<S>& k) { return f.backward(g, k); },
             Elements<S>{grad.data + row * grad.step, 1}, Elements<S>{kept.data + row * kept.step, 1});
    }
  });
}

template <typename S>
void pack_row_bits(int64_t rows, int64_t columns, Rows<const S> values, Rows<uint8_t> bits) {
  for (int64_t row = 0; row < rows; ++row) {
    const S* from = values.data + row * values.step;
    uint8_t* to = bits.data + row * bits.step;
    for (int64_t column = 0; column < columns; column += 8) {
      unsigned byte = 0;
      for (int64_t k = 0; k < 8 && column + k < columns; ++k) byte |= unsigned(!(from[column + k] <= S(0))) << k;
      to[column / 8] = static_cast<uint8_t>(byte);
    }
  }
}

template <typename S>
void unpack_row_bits(int64_t rows, int64_t columns, Rows<const uint8_t> bits, Rows<S> values) {
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* from = bits.data + row * bits.step;
    S* to = values.data + row * values.step;
    for (int64_t column = 0; column < columns; ++column) to[column] = S(from[column / 8] >> (column % 8) & 1);
  }
}

template <typename S>
class Forward {
 public:
  explicit Forward(const LayersForward& job)
      : job_(job), in_place_(job.rows <= rows_in_place), packed_(weights_size()) {
    S* to = packed_.get();
    if (in_place_) return;
    for (int64_t l = 0; l < job.count; ++l) {
      const DenseLayer& layer = job.layers[l];
      pack_transposed(Rows<const S>{static_cast<const S*>(layer.weights), layer.input_size}, layer.input_size,
                      layer.output_size, to);
      to += packed_size<S>(layer.input_size, layer.output_size);
    }
  }

  void run(int64_t begin, int64_t end) const {
    constexpr int64_t block = 64;  // rows whose hidden layers stay in the cache from one product to the next
    const int64_t most = end - begin < block ? end - begin : block;
    const Scratch<S> room(2 * most * widest_);
    for (int64_t first = begin; first < end; first += block) {
      run_block(first, end - first < block ? end - first : block, room.get(), most * widest_);
    }
  }

 private:
  int64_t weights_size() {
    int64_t size = 0;
    for (int64_t l = 0; l < job_.count; ++l) {
      const DenseLayer& layer = job_.layers[l];
      size += packed_size<S>(layer.input_size, layer.output_size);
      if (layer.output_size > widest_) widest_ = layer.output_size;
    }
    return in_place_ ? 0 : size;
  }

  void run_block(int64_t first, int64_t rows, S* room, int64_t room_size) const {
    Rows<const S> in{static_cast<const S*>(job_.x) + first * job_.x_step, job_.x_step};
    const S* weights = packed_.get();
    for (int64_t l = 0; l < job_.count; ++l) {
      const DenseLayer& layer = job_.layers[l];
      const bool values = layer.activated && job_.keep == Keep::values;
      const bool inputs = keeps_input(job_.activation);
      const Rows<S> kept{static_cast<S*>(layer.kept) + (values ? first * job_.kept_step : 0), job_.kept_step};
      const Rows<S> out = l + 1 == job_.count
                              ? Rows<S>{static_cast<S*>(job_.output) + first * job_.output_step, job_.output_step}
                          : values && !inputs ? kept
                                              : Rows<S>{room + l % 2 * room_size, layer.output_size};
      const Rows<S> z = values && inputs ? kept : out;
      const auto* bias = static_cast<const S*>(layer.bias);
      if (in_place_) {
        const auto* own = static_cast<const S*>(layer.weights);
        product_in_place(in, rows, own, layer.input_size, layer.output_size, bias, z);
      } else {
        product(in, 1, rows, weights, layer.input_size, layer.output_size, bias, z);
      }
      if (layer.activated) {
        activate_rows(job_.activation, rows, layer.output_size, out, Rows<const S>{z.data, z.step});
        if (job_.keep == Keep::bits) {
          pack_row_bits(rows, layer.output_size, Rows<const S>{out.data, out.step},
                        {static_cast<uint8_t*>(layer.kept) + first * job_.kept_step, job_.kept_step});
        }
      }
      weights += packed_size<S>(layer.input_size, layer.output_size);
      in = {out.data, out.step};
    }
  }

  const LayersForward& job_;
  int64_t widest_ = 0;
  bool in_place_;
  const Scratch<S> packed_;
};

template <typename S>
void forward(const LayersForward& job) {
  const Forward<S> network(job);
  int64_t work = 1;
  for (int64_t l = 0; l < job.count; ++l) work += job.layers[l].input_size * job.layers[l].output_size;
  parallel(job.rows, 1 + (int64_t(1) << 20) / work, [&](int64_t begin, int64_t end) { network.run(begin, end); });
}

template <typename S>
void column_sums(Rows<const S> from, int64_t rows, int64_t columns, S* to) {
  for (int64_t column = 0; column < columns; column += lanes<S>) {
    const int64_t count = lanes_left<S>(columns, column);
    LongSum<S> sum;
    add_rows(sum, rows, [&](int64_t row) { return load_lanes(from.data + row * from.step + column, count); });
    store_lanes(to + column, sum.total(), count);
  }
}

// Runs on one thread. Sums over rows are computed in pieces, at most plain_pieces of them (fuses_backward_of).
template <typename S>
class Backward {
 public:
  explicit Backward(const LayersBackward& job)
      : job_(job), packed_size_(measure()), memory_(packed_size_ + 3 * job.rows * widest_) {}

  void run() const {
    const DenseLayer& last = job_.layers[job_.count - 1];
    Rows<const S> grad{static_cast<const S*>(job_.grad), last.output_size};
    if (last.activated) grad = through_activation(last, grad, {grads(0), last.output_size});
    for (int64_t l = job_.count - 1; l >= 0; --l) {
      const DenseLayer& layer = job_.layers[l];
      parameters(l, grad);
      if (l == 0 ? !job_.need_x : l <= lowest_) return;
      const Rows<S> below{l == 0 ? static_cast<S*>(job_.grad_x) : grads((job_.count - l) % 2), layer.input_size};
      const Rows<const S> weights{static_cast<const S*>(layer.weights), layer.input_size};
      pack(weights, layer.output_size, layer.input_size, packed());
      product<S>(grad, 1, job_.rows, packed(), layer.output_size, layer.input_size, nullptr, below);
      grad = {below.data, below.step};
      if (l > 0) grad = through_activation(job_.layers[l - 1], grad, below);
    }
  }

 private:
  int64_t measure() {
    int64_t packed = 0;
    lowest_ = job_.need_x ? -1 : job_.count;
    for (int64_t l = job_.count - 1; l >= 0; --l) {
      const DenseLayer& layer = job_.layers[l];
      const int64_t depth = layer.output_size > job_.rows ? layer.output_size : job_.rows;
      const int64_t size = packed_size<S>(depth, layer.input_size);
      if (size > packed) packed = size;
      if (layer.input_size > widest_) widest_ = layer.input_size;
      if (layer.output_size > widest_) widest_ = layer.output_size;
      if (!job_.need_x && (layer.need_weights || layer.need_bias)) lowest_ = l;
    }
    return packed;
  }

  S* packed() const { return memory_.get(); }
  S* grads(int64_t which) const { return packed() + packed_size_ + which * job_.rows * widest_; }
  S* values() const { return grads(2); }

  Rows<const S> kept_of(const DenseLayer& layer) const {
    if (job_.keep == Keep::values) return {static_cast<const S*>(layer.kept), job_.kept_step};
    unpack_row_bits(job_.rows, layer.output_size, {static_cast<const uint8_t*>(layer.kept), job_.kept_step},
                    Rows<S>{values(), layer.output_size});
    return {values(), layer.output_size};
  }

  Rows<const S> through_activation(const DenseLayer& layer, Rows<const S> grad, Rows<S> to) const {
    activate_rows_backward(job_.activation, job_.rows, layer.output_size, to, grad, kept_of(layer));
    return {to.data, to.step};
  }

  Rows<const S> input_of(int64_t l) const {
    if (l == 0) return {static_cast<const S*>(job_.x), job_.x_step};
    const DenseLayer& before = job_.layers[l - 1];
    const Rows<const S> kept{static_cast<const S*>(before.kept), job_.kept_step};
    if (!keeps_input(job_.activation)) return kept;
    const Rows<S> again{values(), before.output_size};
    activate_rows(job_.activation, job_.rows, before.output_size, again, kept);
    return {again.data, again.step};
  }

  void parameters(int64_t l, Rows<const S> grad) const {
    const DenseLayer& layer = job_.layers[l];
    if (layer.need_bias) {
      column_sums(grad, job_.rows, layer.output_size, static_cast<S*>(layer.grad_bias));
    }
    if (!layer.need_weights) return;
    const Rows<const S> input = input_of(l);
    for_pieces(job_.rows, [&](int64_t first, int64_t rows) {
      pack({input.data + first * input.step, input.step}, rows, layer.input_size, packed());
      product<S>({grad.data + first * grad.step, 1}, grad.step, layer.output_size, packed(), rows, layer.input_size,
                 nullptr, {static_cast<S*>(layer.grad_weights), layer.input_size}, first == 0);
    });
  }

  const LayersBackward& job_;
  int64_t widest_ = 0;
  int64_t lowest_ = 0;  // the lowest layer that needs a gradient; -1 for x
  int64_t packed_size_;
  const Scratch<S> memory_;  // a packed matrix, two gradients of a layer's rows, and a layer's values
};

}  // namespace

void mlp_layers(const LayersForward& job) {
  visit_compute(job.kind, [&](auto s) { forward<decltype(s)>(job); });
}

void mlp_layers_backward(const LayersBackward& job) {
  visit_compute(job.kind, [&](auto s) { Backward<decltype(s)>(job).run(); });
}

void pack_bits(Kind kind, int64_t rows, int64_t columns, const void* values, void* bits, int64_t step) {
  visit_compute(kind, [&](auto s) {
    using S = decltype(s);
    pack_row_bits(rows, columns, Rows<const S>{static_cast<const S*>(values), columns},
                  {static_cast<uint8_t*>(bits), step});
  });
}

void unpack_bits(Kind kind, int64_t rows, int64_t columns, const void* bits, int64_t step, void* values) {
  visit_compute(kind, [&](auto s) {
    using S = decltype(s);
    unpack_row_bits(rows, columns, {static_cast<const uint8_t*>(bits), step},
                    Rows<S>{static_cast<S*>(values), columns});
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
