// The backward of a recurrent layer: step by step, from last to first, the gradients of the gates and of h; then, for
// each chunk of steps, the products for the gradients of the weights and of the input.
#pragma once

#include "cpu/kernels/outer.h"
#include "cpu/kernels/recurrent_columns.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// The accumulators of the weights' gradients: the job's memory, or a share's.
template <typename S>
struct WeightSums {
  Totals<S> weight_ih;
  Totals<S> weight_hh;
  S* gates;  // (2, grads * hidden_size): of the biases, and the rounding errors
};

// Columns: PackedColumns or UnpackedColumns.
template <typename Cell, typename E, typename Columns>
class Backward {
  using M = Memory<E>;
  using S = Sum<E>;
  // The first share accumulates in the returned tensors, unless these are less precise.
  static constexpr bool own_sums = !std::is_same_v<M, S>;

 public:
  Backward(const RecurrentBackward& job, const Partition& partition)
      : job_(job),
        layer_(job.layer),
        resets_(resets_of(job.layer)),
        partition_(partition),
        size_(layer_.hidden_size),
        hidden_({layer_.weight_hh, layer_.weight_hh_leading_dim, size_, size_, gates,
                 [](int k) { return Cell::hidden_gate(grads - gates + k); }}),
        input_({layer_.weight_ih, layer_.weight_ih_leading_dim, job.need_input ? layer_.input_size : 0, size_,
                gates, [](int k) { return Cell::input_gate(k); }}),
        memory_(hidden_.size() + input_.size()),
        room_size_(greatest(hidden_.room(), input_.room())),
        room_(partition.shares * room_size_),
        states_(2 * layer_.batch * size_),
        grads_(partition.chunk_steps * layer_.batch * grads * size_),
        lost_size_(layer_.time * layer_.batch > plain_pieces * piece_rows ? weights_size() : 0),
        rounded_(own_sums && !partition.by_rows && layer_.time * layer_.batch <= piece_rows),
        sums_(job.need_weights ? partition.shares * sums_size() + common_size() + (partition.by_rows ? 0 : lost_size_) : 0),
        rows_(job.need_weights ? partition.shares * packed_rows_size() : 0),
        lists_(3 * partition.shares * partition.chunk_steps * layer_.batch),
        zeros_(greatest(size_, 1)) {
    hidden_.data = memory_.get();
    input_.data = memory_.get() + hidden_.size();
    copy_values(zeros_.get(), static_cast<const M*>(nullptr), size_);
  }

  void run() const {
    team(partition_.shares, [&](Member& member) {
      [[maybe_unused]] const TilesInUse tiles;
      pack(member);
      member.wait();
      const Part part = part_of(partition_, layer_, hidden_.blocks(), member.begin(), member.end());
      begin_states(part);
      for (int64_t first = 0; first < layer_.time; first += partition_.chunk_steps) {
        const int64_t end = least(first + partition_.chunk_steps, layer_.time);
        for (int64_t s = first; s < end; ++s) {
          step_gates(part, first, s);
          if (!partition_.by_rows) member.wait();
          if (needs_h(s)) step_h(part, member, first, s);
        }
        finish_chunk(part, member, first, end);
        if (!partition_.by_rows) member.wait();
      }
      if (layer_.time == 0) finish_chunk(part, member, 0, 0);  // writes zeros
      if (job_.need_states) end_states(part);
      if (!job_.need_weights) return;
      member.wait();
      add_up(member);
    });
  }

 private:
  static constexpr int gates = Cell::gates;
  static constexpr int grads = Cell::grads;

  int64_t weights_size() const { return gates * size_ * (layer_.input_size + size_); }

  // The size of a share's sums: of the biases and, if shares have their own rows, of the weights with their rounding
  // errors.
  int64_t sums_size() const { return 2 * grads * size_ + (partition_.by_rows ? weights_size() + lost_size_ : 0); }

  // The size of the weights' sums that all shares have in common, if they can't accumulate in the returned tensors.
  int64_t common_size() const { return own_sums && !partition_.by_rows && !rounded_ ? weights_size() : 0; }

  int64_t packed_rows_size() const {
    const int64_t rows = least(partition_.chunk_steps * layer_.batch, piece_rows);
    return outer_size<E>(size_, rows) + outer_size<E>(layer_.input_size, rows) + outer_size<E>(lanes<S>, rows);
  }

  // Whether the gradient of h before a step is needed: by the next step or, at the end, by the caller.
  bool needs_h(int64_t s) const { return job_.need_states || s + 1 < layer_.time; }
  int64_t step_at(int64_t s) const { return layer_.reverse ? s : layer_.time - 1 - s; }
  S* grad_h(int64_t row) const { return states_.get() + row * size_; }
  S* grad_state(int64_t row) const { return states_.get() + (layer_.batch + row) * size_; }
  M* grad_gates(int64_t s, int64_t row) const { return grads_.get() + (s * layer_.batch + row) * grads * size_; }
  bool is_reset(int64_t t, int64_t row) const { return resets_ != nullptr && resets_[first_row(layer_, t) + row]; }

  void pack(const Member& member) const {
    const auto share_of = [&](int64_t blocks, int64_t k) { return blocks * k / partition_.shares; };
    const int64_t begin = member.begin();
    const int64_t end = member.end();
    if (needs_h(0)) hidden_.pack(share_of(hidden_.blocks(), begin), share_of(hidden_.blocks(), end));
    input_.pack(share_of(input_.blocks(), begin), share_of(input_.blocks(), end));
  }

  template <typename F>
  void for_units(const Part& part, const F& f) const {
    const int64_t unit = part.block_begin * lanes<S>;
    const int64_t count = least(part.block_end * lanes<S>, size_) - unit;
    for (int64_t row = part.row_begin; row < part.row_end && count > 0; ++row) f(row, unit, count);
  }

  void begin_states(const Part& part) const {
    for_units(part, [&](int64_t row, int64_t unit, int64_t count) {
      copy_values(grad_h(row) + unit, at_row(static_cast<const M*>(job_.grad_h_n), row * size_ + unit, 1), count);
      copy_values(grad_state(row) + unit, at_row(static_cast<const M*>(job_.grad_c_n), row * size_ + unit, 1), count);
    });
  }

  void end_states(const Part& part) const {
    for_units(part, [&](int64_t row, int64_t unit, int64_t count) {
      M* to = static_cast<M*>(job_.grad_h_0) + row * size_ + unit;
      if (Cell::has_c) {
        copy_values(to, grad_h(row) + unit, count);
        copy_values(static_cast<M*>(job_.grad_c_0) + row * size_ + unit, grad_state(row) + unit, count);
        return;
      }
      for (int64_t k = 0; k < count; k += lanes<S>) {
        const int64_t n = lanes_left<S>(count, k);
        store_lanes(to + k, load_lanes(grad_h(row) + unit + k, n) + load_lanes(grad_state(row) + unit + k, n), n);
      }
    });
  }

  void step_gates(const Part& part, int64_t first, int64_t s) const {
    const int64_t t = step_at(s);
    const int64_t count = rows_of_part(layer_, part, t);
    for (int64_t row = part.row_begin; row < part.row_begin + count; ++row) {
      const int64_t at = first_row(layer_, t) + row;
      const M* before = row_before(
          layer_, t, row, static_cast<const M*>(Cell::has_c ? job_.cells : job_.output),
          static_cast<const M*>(Cell::has_c ? job_.c_0 : job_.h_0), static_cast<const M*>(zeros_.get()));
      const M* after = static_cast<const M*>(Cell::has_c ? job_.cells : job_.output) + at * size_;
      const M* kept = static_cast<const M*>(job_.kept) + at * Cell::kept * size_;
      const M* grad_output = at_row(static_cast<const M*>(job_.grad_output), at, size_);
      M* to = grad_gates(s - first, row);
      const bool reset = is_reset(t, row);
      for (int64_t block = part.block_begin; block < part.block_end; ++block) {
        const int64_t unit = block * lanes<S>;
        const int64_t n = lanes_left<S>(size_, unit);
        Values<Vectorized<S>, Cell::kept> values;
        for (int k = 0; k < Cell::kept; ++k) values.v[k] = load_lanes(kept + k * size_ + unit, n);
        const auto h = load_lanes(grad_h(row) + unit, n) + load_or_zero(grad_output, unit, n);
        const auto result = Cell::backward(
            values, load_lanes(before + unit, n), load_lanes(after + unit, n), h, load_lanes(grad_state(row) + unit, n));
        for (int k = 0; k < grads; ++k) store_lanes(to + k * size_ + unit, result.gates.v[k], n);
        store_lanes(grad_state(row) + unit, reset ? Vectorized<S>(S(0)) : result.state, n);
      }
    }
  }

  S* room_of(int64_t share) const { return room_.get() + share * room_size_; }

  // A member's lists of pointers to rows: of gate gradients, of h, of the input.
  const M** list(int64_t share, int64_t k) const {
    return lists_.get() + (3 * share + k) * partition_.chunk_steps * layer_.batch;
  }

  // Computes the gradient of h before step t, for the part's rows and units, from the gates' gradients.
  void step_h(const Part& part, const Member& member, int64_t first, int64_t s) const {
    const int64_t t = step_at(s);
    const int64_t count = rows_of_part(layer_, part, t);
    const M** a = list(member.begin(), 0);
    for (int64_t row = 0; row < count; ++row) {
      a[row] = grad_gates(s - first, part.row_begin + row) + (grads - gates) * size_;
    }
    const auto store = [&](int64_t r, int64_t block, const auto& v) {
      const int64_t row = part.row_begin + r;
      const int64_t unit = block * lanes<S>;
      store_lanes(grad_h(row) + unit, is_reset(t, row) ? Vectorized<S>(S(0)) : v, lanes_left<S>(size_, unit));
    };
    hidden_.multiply_rows(
        factor_rows<E>(a), count, part.block_begin, part.block_end, room_of(member.begin()), store);
  }

  void finish_chunk(const Part& part, const Member& member, int64_t first, int64_t end) const {
    const bool begin = first == 0;
    if (partition_.by_rows) {
      for (int64_t share = member.begin(); share < member.end(); ++share) {
        const Part own = part_of(partition_, layer_, hidden_.blocks(), share, share + 1);
        const int64_t count = list_rows(own, share, first, end);
        if (job_.need_weights) add_weights(own, share, count, sums_of(share), begin);
        if (job_.need_input) grad_inputs(list(share, 0), list(share, 2), count, share);
      }
      return;
    }
    const int64_t count = list_rows(part, member.begin(), first, end);
    if (job_.need_weights) add_weights(part, member.begin(), count, sums_of(0), begin);
    if (!job_.need_input) return;
    const int64_t from = count * member.begin() / partition_.shares;
    const int64_t until = count * member.end() / partition_.shares;
    grad_inputs(list(member.begin(), 0) + from, list(member.begin(), 2) + from, until - from, member.begin());
  }

  int64_t list_rows(const Part& part, int64_t share, int64_t first, int64_t end) const {
    int64_t count = 0;
    for (int64_t s = first; s < end; ++s) {
      const int64_t t = step_at(s);
      const int64_t rows = rows_of_part(layer_, part, t);
      for (int64_t row = part.row_begin; row < part.row_begin + rows; ++row, ++count) {
        list(share, 0)[count] = grad_gates(s - first, row);
        list(share, 1)[count] =
            row_before(layer_, t, row, static_cast<const M*>(job_.output), static_cast<const M*>(job_.h_0),
                       static_cast<const M*>(zeros_.get()));
        list(share, 2)[count] = static_cast<const M*>(job_.input) + (first_row(layer_, t) + row) * layer_.input_size;
      }
    }
    return count;
  }

  WeightSums<S> sums_of(int64_t share) const {
    S* gate_sums = sums_.get() + share * sums_size();
    S* weights = partition_.by_rows ? gate_sums + 2 * grads * size_ : sums_.get() + partition_.shares * sums_size();
    S* lost = lost_size_ == 0 ? nullptr : weights + (partition_.by_rows ? weights_size() : common_size());
    const int64_t hh = gates * size_ * layer_.input_size;
    S* lost_hh = lost == nullptr ? nullptr : lost + hh;
    if constexpr (!own_sums) {
      if (share == 0) {
        return {{static_cast<S*>(job_.grad_weight_ih), job_.grad_weight_ih_leading_dim, lost, layer_.input_size},
                {static_cast<S*>(job_.grad_weight_hh), job_.grad_weight_hh_leading_dim, lost_hh, size_},
                gate_sums};
      }
    }
    return {{weights, layer_.input_size, lost, layer_.input_size}, {weights + hh, size_, lost_hh, size_}, gate_sums};
  }

  Totals<S> gate_totals(const WeightSums<S>& sums) const { return {sums.gates, 0, sums.gates + grads * size_, 0}; }

  // Adds a chunk's rows. begin: whether it is the first chunk.
  void add_weights(const Part& part, int64_t share, int64_t count, const WeightSums<S>& sums, bool begin) const {
    for_pieces(count, [&](int64_t first, int64_t rows) { add_piece(part, share, first, rows, sums, begin && first == 0); });
  }

  void add_piece(
      const Part& part, int64_t share, int64_t first, int64_t count, const WeightSums<S>& sums, bool begin) const {
    E* packed_h = rows_.get() + share * packed_rows_size();
    E* packed_x = packed_h + outer_size<E>(size_, count);
    E* strip = packed_x + outer_size<E>(layer_.input_size, count);
    const M* const* a = list(share, 0) + first;
    pack_outer<E>(list(share, 1) + first, count, size_, packed_h);
    pack_outer<E>(list(share, 2) + first, count, layer_.input_size, packed_x);
    const Totals<S> of_gates = gate_totals(sums);
    for (int slot = 0; slot < grads; ++slot) {
      for (int64_t block = part.block_begin; block < part.block_end; ++block) {
        const int64_t unit = block * lanes<S>;
        const int64_t units = lanes_left<S>(size_, unit);
        const int64_t from = slot * size_ + unit;
        LongSum<S> sum = begin ? LongSum<S>() : of_gates.load(0, from, units);
        pack_strip(a, from, units, count, strip, sum);
        of_gates.store(0, from, units, sum);
        const auto add = [&](const auto& weight_ih, const auto& weight_hh) {
          if (slot < gates) {
            add_outer(strip, lanes<S>, units, packed_x, count, layer_.input_size,
                      weight_ih.at(Cell::input_gate(slot) * size_ + unit, 0), begin);
          }
          if (slot >= grads - gates) {
            add_outer(strip, lanes<S>, units, packed_h, count, size_,
                      weight_hh.at(Cell::hidden_gate(slot) * size_ + unit, 0), begin);
          }
        };
        if constexpr (own_sums) {
          if (rounded_) {
            add(Rounded<M>{static_cast<M*>(job_.grad_weight_ih), job_.grad_weight_ih_leading_dim},
                Rounded<M>{static_cast<M*>(job_.grad_weight_hh), job_.grad_weight_hh_leading_dim});
            continue;
          }
        }
        add(sums.weight_ih, sums.weight_hh);
      }
    }
  }

  void grad_inputs(const M* const* a, const M* const* inputs, int64_t count, int64_t share) const {
    const M* all = static_cast<const M*>(job_.input);
    const auto store = [&](int64_t row, int64_t block, const auto& v) {
      const int64_t column = block * lanes<S>;
      M* to = static_cast<M*>(job_.grad_input) + (inputs[row] - all) + column;
      store_lanes(to, v, lanes_left<S>(layer_.input_size, column));
    };
    input_.multiply_rows(factor_rows<E>(a), count, 0, input_.blocks(), room_of(share), store);
  }

  // Adds the sums of all shares, in order, and writes them to the job's memory; then the biases.
  void add_up(const Member& member) const {
    const int64_t begin = gates * size_ * member.begin() / partition_.shares;
    const int64_t end = gates * size_ * member.end() / partition_.shares;
    const WeightSums<S> all = sums_of(0);
    for (int64_t row = begin; row < end; ++row) finish_row(all, row);
    for (int64_t share = 1; partition_.by_rows && share < partition_.shares; ++share) {
      const WeightSums<S> more = sums_of(share);
      for (int64_t row = begin; row < end; ++row) {
        finish_row(more, row);
        add_values(all.weight_ih.at(row, 0).data, more.weight_ih.at(row, 0).data, layer_.input_size);
        add_values(all.weight_hh.at(row, 0).data, more.weight_hh.at(row, 0).data, size_);
      }
    }
    for (int64_t row = begin; own_sums && !rounded_ && row < end; ++row) {
      copy_values(static_cast<M*>(job_.grad_weight_ih) + row * job_.grad_weight_ih_leading_dim,
                  all.weight_ih.at(row, 0).data, layer_.input_size);
      copy_values(static_cast<M*>(job_.grad_weight_hh) + row * job_.grad_weight_hh_leading_dim,
                  all.weight_hh.at(row, 0).data, size_);
    }
    if (member.begin() != 0) return;
    for (int64_t share = 0; share < (partition_.by_rows ? partition_.shares : 1); ++share) {
      const Totals<S> more = gate_totals(sums_of(share));
      more.finish(0, grads * size_);
      if (share > 0) add_values(all.gates, more.data, grads * size_);
    }
    for (int slot = 0; slot < grads; ++slot) {
      const S* from = all.gates + slot * size_;
      if (slot < gates && job_.grad_bias_ih != nullptr) {
        copy_values(static_cast<M*>(job_.grad_bias_ih) + Cell::input_gate(slot) * size_, from, size_);
      }
      if (slot >= grads - gates && job_.grad_bias_hh != nullptr) {
        copy_values(static_cast<M*>(job_.grad_bias_hh) + Cell::hidden_gate(slot) * size_, from, size_);
      }
    }
  }

  void finish_row(const WeightSums<S>& sums, int64_t row) const {
    sums.weight_ih.finish(row, layer_.input_size);
    sums.weight_hh.finish(row, size_);
  }

  static void add_values(S* to, const S* from, int64_t count) {
    for (int64_t k = 0; k < count; k += lanes<S>) {
      const int64_t n = lanes_left<S>(count, k);
      store_lanes(to + k, load_lanes(to + k, n) + load_lanes(from + k, n), n);
    }
  }

  const RecurrentBackward& job_;
  const RecurrentLayer& layer_;
  const bool* resets_;
  const Partition partition_;
  int64_t size_;
  Columns hidden_;
  Columns input_;
  Scratch<E> memory_;
  int64_t room_size_;
  Scratch<S> room_;
  Scratch<S> states_;
  Scratch<M> grads_;
  int64_t lost_size_;  // size of the weights' rounding errors; 0 if there are few pieces
  bool rounded_;  // whether a single piece's sums are rounded directly to the returned tensors
  Scratch<S> sums_;
  Scratch<E> rows_;
  Scratch<const M*> lists_;
  Scratch<M> zeros_;
};

template <typename Cell, typename E>
void run_backward(const RecurrentBackward& job) {
  const RecurrentLayer& layer = job.layer;
  if (few_rows(layer)) {
    const Partition partition = partition_in_place<Cell>(layer, divide_up(layer.hidden_size, lanes<Sum<E>>));
    // Packed float32 tiles are the fastest relative to their size, so unpacked weights win only for fewer rows.
    if (in_place<E>(layer, Cell::gates, std::is_same_v<E, float> ? 8 : 16)) {
      return Backward<Cell, E, UnpackedColumns<E>>(job, partition).run();
    }
    return Backward<Cell, E, PackedColumns<E>>(job, partition).run();
  }
  const int64_t depth = Cell::gates * layer.hidden_size;
  const double rows = static_cast<double>(first_row(layer, layer.time));
  const double work = 2 * rows * static_cast<double>(depth) * static_cast<double>(layer.input_size + layer.hidden_size);
  const auto bytes = static_cast<int64_t>(sizeof(Memory<E>));
  const int64_t row_bytes = Cell::grads * layer.hidden_size * bytes;
  Partition partition = partition_of(
      layer, divide_up(layer.hidden_size, lanes<Sum<E>>), depth * (layer.hidden_size + layer.input_size) * bytes,
      0, row_bytes, work);
  // The boundaries of a sum's pieces determine its bits, so they must not depend on the number of threads that split
  // the units.
  if (!partition.by_rows) partition.chunk_steps = steps_within(layer, held_bytes, row_bytes);
  // The weights' sums are read and written once per chunk: chunks need enough rows, and a single one with rounded_.
  const int64_t steps = divide_up(piece_rows, greatest(layer.batch, 1));
  partition.chunk_steps = greatest(1, least(layer.time, greatest(partition.chunk_steps, steps)));
  Backward<Cell, E, PackedColumns<E>>(job, partition).run();
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
