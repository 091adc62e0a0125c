// The forward of a recurrent layer: for each chunk of steps, the input's products of all rows; then, step by step, the
// hidden product and the cell, which is applied to the product's sums while they are in the L1 cache.
#pragma once

#include "cpu/kernels/recurrent_weights.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// The cells of some rows in one block of hidden units: addresses of the first row; those of the next row are `size`
// further.
template <typename Cell, typename E>
struct CellRows {
  using M = Memory<E>;
  using S = Sum<E>;
  static constexpr int gates = Cell::gates;

  const S* input;  // the input's products
  const S* by_h;
  int64_t by_h_step;
  S* state;
  M* output;
  M* kept;  // or null
  M* cells;
  const bool* reset;  // or null
  int64_t rows;
  int64_t count;
  int64_t size;

  FOURFOLD_FN void run() const {
    if (count < lanes<S>) {
      for (int64_t r = 0; r < rows; ++r) some<1, false>(r);
      return;
    }
    // Three chains of about 200 cycles keep the arithmetic units busy; four rows are two pairs. Inlined, because a
    // function would load pairs of members that its caller has just stored one by one, which stalls until the previous
    // cells are stored.
    for (int64_t r = 0; r < rows;) {
      with_count<3>(rows - r == 4 ? 2 : rows - r, [&](auto together) __attribute__((always_inline)) {
        kept != nullptr ? some<together, true, true>(r) : some<together, true, false>(r);
        r += together;
      });
    }
  }

 private:
  template <int n>
  using Rows = Lockstep<Vectorized<S>, n>;

  // Computes the cells of n rows. whole: all lanes are hidden units.
  template <int n, bool whole, bool keeps = true>
  FOURFOLD_FN void some(int64_t first) const {
    const int64_t units = whole ? lanes<S> : count;
    Values<Rows<n>, gates> of_input;
    Values<Rows<n>, gates> of_h;
    Rows<n> before;
    for (int i = 0; i < n; ++i) {
      const int64_t r = first + i;
      for (int g = 0; g < gates; ++g) {
        of_input.v[g].at[i] = Vectorized<S>::loadu(input + (r * gates + g) * lanes<S>);
        of_h.v[g].at[i] = Vectorized<S>::loadu(by_h + r * by_h_step + g * lanes<S>);
      }
      const bool restart = reset != nullptr && reset[r];
      before.at[i] = restart ? Vectorized<S>(S(0)) : load_lanes(state + r * size, units);
    }
    const auto next = Cell::forward(of_input, of_h, before);
    for (int i = 0; i < n; ++i) {
      const int64_t r = first + i;
      store_lanes(state + r * size, next.state.at[i], units);
      store_lanes(output + r * size, next.h.at[i], units);
      if (!keeps || (!whole && kept == nullptr)) continue;
      for (int k = 0; k < Cell::kept; ++k) store_lanes(kept + (r * Cell::kept + k) * size, next.kept.v[k].at[i], units);
      if (Cell::has_c) store_lanes(cells + r * size, next.state.at[i], units);
    }
  }
};

// Weights: PackedLayer or UnpackedLayer.
template <typename Cell, typename E, typename Weights>
class Forward {
  using M = Memory<E>;
  using S = Sum<E>;
  // Between steps the state is stored in the returned tensor, unless that is less precise.
  static constexpr bool own_state = !std::is_same_v<M, S>;

 public:
  Forward(const RecurrentForward& job, const Partition& partition, const Weights& weights)
      : job_(job),
        layer_(job.layer),
        resets_(resets_of(job.layer)),
        partition_(partition),
        weights_(weights),
        input_step_(factors<E>(layer_.input_size) * Factor<E>::per_factor),
        padded_(input_step_ == layer_.input_size ? 0 : first_row(layer_, layer_.time) * input_step_),
        projected_(partition.chunk_steps * layer_.batch * weights.blocks() * width),
        rows_(partition.shares * partition.chunk_steps * layer_.batch),
        sources_(partition.shares * greatest(partition.chunk_steps, 1) * layer_.batch),
        zeros_(layer_.hidden_size),
        room_(partition.shares * Weights::room),
        columns_(by_columns() ? partition.shares * columns_size<E>(first_row(layer_, layer_.time), layer_.input_size) : 0),
        states_(own_state ? layer_.batch * layer_.hidden_size : 0) {
    copy_values(zeros_.get(), static_cast<const S*>(nullptr), layer_.hidden_size);
    pad_input();
  }

  // pack(part, member): packs weights before a part's products.
  template <typename F>
  void run(const F& pack) const {
    team(partition_.shares, [&](Member& member) {
      [[maybe_unused]] const TilesInUse tiles;
      const Part part = part_of(partition_, layer_, weights_.blocks(), member.begin(), member.end());
      pack(part, member);
      run_part(part, member);
    });
  }

 private:
  static constexpr int gates = Cell::gates;
  static constexpr int64_t width = gates * lanes<S>;

  // Pads rows with an odd number of values by a zero, to form pairs.
  void pad_input() const {
    const int64_t size = layer_.input_size;
    if (input_step_ == size) return;
    for (int64_t row = 0; row < first_row(layer_, layer_.time); ++row) {
      M* to = padded_.get() + row * input_step_;
      std::memcpy(to, static_cast<const M*>(job_.input) + row * size, static_cast<size_t>(size) * sizeof(M));
      to[size] = M(0);
    }
  }

  const E* input_row(int64_t row) const {
    const void* rows = input_step_ == layer_.input_size ? static_cast<const void*>(job_.input) : padded_.get();
    return factors_at<E>(rows, row * input_step_);
  }

  void run_part(const Part& part, Member& member) const {
    begin_states(part);
    for (int64_t first = 0; first < layer_.time; first += partition_.chunk_steps) {
      const int64_t end = least(first + partition_.chunk_steps, layer_.time);
      project(part, member, first, end);
      for (int64_t s = first; s < end; ++s) {
        step(part, member, first, s);
        if (!partition_.by_rows) member.wait();
      }
    }
    end_states(part);
  }

  // s counts steps in the layer's direction.
  int64_t step_at(int64_t s) const { return layer_.reverse ? layer_.time - 1 - s : s; }

  // The input projection of a part's rows in a chunk: (blocks, steps, rows, gates * lanes).
  S* projected(const Part& part, int64_t block, int64_t s, int64_t row) const {
    const int64_t part_rows = part.rows();
    S* begin = partition_.by_rows ? projected_.get() + partition_.chunk_steps * part.row_begin * weights_.blocks() * width
                             : projected_.get() + part.block_begin * partition_.chunk_steps * layer_.batch * width;
    return begin + (((block - part.block_begin) * partition_.chunk_steps + s) * part_rows + row) * width;
  }

  S* room_of(const Member& member) const { return room_.get() + member.begin() * Weights::room; }

  // The offset of a member's list of row pointers.
  int64_t list_of(const Member& member) const { return member.begin() * partition_.chunk_steps * layer_.batch; }

  void project(const Part& part, const Member& member, int64_t first, int64_t end) const {
    if constexpr (Weights::in_place) {
      if (by_columns()) return project_columns(part, member);
    }
    const E** sources = sources_.get() + list_of(member);
    int64_t* targets = rows_.get() + list_of(member);
    int64_t count = 0;
    for (int64_t s = first; s < end; ++s) {
      const int64_t t = step_at(s);
      const int64_t rows = rows_of_part(layer_, part, t);
      for (int64_t row = 0; row < rows; ++row, ++count) {
        const int64_t at = first_row(layer_, t) + part.row_begin + row;
        sources[count] = input_row(at);
        targets[count] = (s - first) * part.rows() + row;
      }
    }
    for (int64_t block = part.block_begin; block < part.block_end; ++block) {
      S* to = projected(part, block, 0, 0);
      for_groups(0, count, Weights::tile_rows, [&](int64_t from, int64_t rows) {
        weights_.by_input(sources + from, rows, block, room_of(member), {to, width, targets + from});
      });
    }
  }

  // Whether there are enough rows to be the lanes of the input's product.
  bool by_columns() const { return Weights::in_place && first_row(layer_, layer_.time) >= lanes<S>; }

  // The same with the rows as lanes, all of them at once.
  void project_columns(const Part& part, const Member& member) const {
    const int64_t count = first_row(layer_, layer_.time);
    int64_t* targets = rows_.get() + list_of(member);
    for (int64_t s = 0; s < layer_.time; ++s) {
      const int64_t t = step_at(s);
      for (int64_t row = 0; row < active_rows(layer_, t); ++row) {
        targets[first_row(layer_, t) + row] = s * layer_.batch + row;
      }
    }
    E* columns = columns_.get() + member.begin() * columns_size<E>(count, layer_.input_size);
    lay_out_columns(static_cast<const M*>(job_.input), count, layer_.input_size, columns);
    for (int64_t block = part.block_begin; block < part.block_end; ++block) {
      weights_.by_columns(columns, count, block, room_of(member), {projected(part, block, 0, 0), width, targets});
    }
  }

  void step(const Part& part, const Member& member, int64_t first, int64_t s) const {
    const int64_t t = step_at(s);
    const int64_t count = rows_of_part(layer_, part, t);
    if (count == 0) return;
    const E** h = sources_.get() + list_of(member);
    for (int64_t row = 0; row < count; ++row) {
      h[row] = factors_at<E>(
          row_before(layer_, t, part.row_begin + row, static_cast<const M*>(job_.output),
                     static_cast<const M*>(job_.h_0), reinterpret_cast<const M*>(zeros_.get())),
          0);
    }
    const int64_t at = first_row(layer_, t) + part.row_begin;
    // Every second step runs backwards, to read first what is still in the cache.
    const int64_t group = Weights::tile_panels(divide_up(count, divide_up(count, Weights::tile_rows)));
    const int64_t groups = divide_up(part.blocks(), group);
    alignas(64) S sums[Weights::tile_vectors * lanes<S>];
    for (int64_t k = 0; k < groups; ++k) {
      const int64_t begin = part.block_begin + (s % 2 == 0 ? k : groups - 1 - k) * group;
      const int64_t end = least(begin + group, part.block_end);
      for_groups(0, count, Weights::tile_rows, [&](int64_t from, int64_t rows) {
        for_groups(begin, end, Weights::tile_panels(rows), [&](int64_t block, int64_t panels) {
          weights_.by_hidden(h + from, rows, block, panels, room_of(member), {sums, panels * width});
          for (int64_t p = 0; p < panels; ++p) {
            const S* input = projected(part, block + p, s - first, from);
            finish(sums + p * width, panels * width, rows, input, t, part.row_begin + from, at + from, block + p);
          }
        });
      });
    }
  }

  // Computes the cells of some rows in one block. by_h: the hidden products, `step` apart. row: the first row in the
  // batch; at: in the whole sequence.
  void finish(
      const S* by_h, int64_t step, int64_t rows, const S* input, int64_t t, int64_t row, int64_t at,
      int64_t block) const {
    const int64_t unit = block * lanes<S>;
    const bool whole = unit + lanes<S> <= layer_.hidden_size;
    CellRows<Cell, E> to{input, by_h, step, state_of(row) + unit,
                         static_cast<M*>(job_.output) + at * layer_.hidden_size + unit, nullptr, nullptr, nullptr, rows,
                         whole ? lanes<S> : layer_.hidden_size - unit, layer_.hidden_size};
    if (job_.keep) {
      to.kept = static_cast<M*>(job_.kept) + at * Cell::kept * layer_.hidden_size + unit;
      if (Cell::has_c) to.cells = static_cast<M*>(job_.cells) + at * layer_.hidden_size + unit;
    }
    if (resets_ != nullptr) to.reset = resets_ + first_row(layer_, t) + row;
    to.run();
  }

  M* final_state() const { return static_cast<M*>(Cell::has_c ? job_.c_n : job_.h_n); }

  S* state_of(int64_t row) const {
    S* states = nullptr;
    if constexpr (own_state) {
      states = states_.get();
    } else {
      states = final_state();
    }
    return states + row * layer_.hidden_size;
  }

  template <typename F>
  void for_units(const Part& part, const F& f) const {
    const int64_t unit = part.block_begin * lanes<S>;
    const int64_t count = least(part.block_end * lanes<S>, layer_.hidden_size) - unit;
    for (int64_t row = part.row_begin; row < part.row_end && count > 0; ++row) {
      f(row, row * layer_.hidden_size + unit, count);
    }
  }

  void begin_states(const Part& part) const {
    const M* initial = static_cast<const M*>(Cell::has_c ? job_.c_0 : job_.h_0);
    for_units(part, [&](int64_t row, int64_t at, int64_t count) {
      copy_values(state_of(row) + at - row * layer_.hidden_size, initial + at, count);
    });
  }

  void end_states(const Part& part) const {
    for_units(part, [&](int64_t row, int64_t at, int64_t count) {
      if (own_state) copy_values(final_state() + at, state_of(row) + at - row * layer_.hidden_size, count);
      if (!Cell::has_c) return;
      // h_n is h after the row's last step.
      int64_t last = layer_.reverse ? 0 : layer_.time - 1;
      while (!layer_.reverse && last >= 0 && row >= active_rows(layer_, last)) --last;
      const M* from = layer_.time == 0 ? static_cast<const M*>(job_.h_0) + at
                                       : static_cast<const M*>(job_.output) +
                                             first_row(layer_, last) * layer_.hidden_size + at;
      copy_values(static_cast<M*>(job_.h_n) + at, from, count);
    });
  }

  const RecurrentForward& job_;
  const RecurrentLayer& layer_;
  const bool* resets_;
  const Partition partition_;
  const Weights& weights_;
  int64_t input_step_;  // values from one row of the input to the next
  Scratch<M> padded_;
  Scratch<S> projected_;
  Scratch<int64_t> rows_;
  Scratch<const E*> sources_;
  Scratch<S> zeros_;
  Scratch<S> room_;
  Scratch<E> columns_;
  Scratch<S> states_;
};

template <typename Cell, typename E>
void run_in_place(const RecurrentForward& job) {
  using Weights = UnpackedLayer<Cell, E>;
  const Weights weights(job.layer);
  const Partition partition = partition_in_place<Cell>(job.layer, weights.blocks());
  Forward<Cell, E, Weights>(job, partition, weights).run([](const Part&, const Member&) {});
}

template <typename Cell, typename E>
void run_forward(const RecurrentForward& job) {
  using Packed = PackedLayer<Cell, E>;
  const RecurrentLayer& layer = job.layer;
  // Unpacked rows of weights must have an even size to form pairs.
  const bool whole = layer.input_size % Factor<E>::per_factor == 0;
  const int64_t rows = Factor<E>::per_factor == 2 ? 8 : 24;
  if (job.prepacked == nullptr && whole && in_place<E>(layer, Cell::gates, rows)) return run_in_place<Cell, E>(job);
  Packed weights(layer, const_cast<void*>(static_cast<const void*>(job.prepacked)));
  const auto bytes = static_cast<int64_t>(sizeof(E));
  const double work = static_cast<double>(first_row(layer, layer.time)) *
                      static_cast<double>(Cell::gates * layer.hidden_size) *
                      static_cast<double>(layer.input_size + layer.hidden_size);
  const int64_t blocks = weights.blocks();
  const int64_t row_bytes = blocks * Packed::width * bytes;
  const int64_t input_bytes = row_bytes * factors<E>(layer.input_size);
  const Partition partition = few_rows(layer)
                        ? partition_in_place<Cell>(layer, blocks)
                        : partition_of(layer, blocks, weights.size() * bytes, input_bytes, row_bytes, work);
  const Scratch<E> memory(job.prepacked == nullptr ? weights.size() : 0);
  if (job.prepacked == nullptr) weights.data = memory.get();
  Forward<Cell, E, Packed>(job, partition, weights).run([&](const Part& part, Member& member) {
    if (job.prepacked != nullptr) return;
    if (!partition.by_rows) return weights.pack(layer, part.block_begin, part.block_end);
    weights.pack(layer, blocks * member.begin() / partition.shares, blocks * member.end() / partition.shares);
    member.wait();
  });
}

// The size of a job's `prepacked` weights; prepack_layer fills them.
template <typename Cell, typename E>
int64_t prepacked_bytes(const RecurrentLayer& layer) {
  return PackedLayer<Cell, E>(layer).size() * static_cast<int64_t>(sizeof(E));
}

template <typename Cell, typename E>
void prepack_layer(const RecurrentLayer& layer, void* prepacked) {
  const PackedLayer<Cell, E> weights(layer, prepacked);
  weights.pack(layer, 0, weights.blocks());
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
