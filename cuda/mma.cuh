// The tensor cores' product of a tile of 16 rows and 8 columns, and a portable emulation, its twin.
//
// Lane (g, q) = (lane / 4, lane % 4) of the group of 32 provides 16 consecutive bytes, a slot, of two rows of A and one
// column of B, and has four sums:
//   top, bottom: slot q of rows g and g + 8;  column: slot q of column g;
//   sum[0], sum[1]: row g, columns 2q and 2q + 1;  sum[2], sum[3]: row g + 8.
// The order of slots along the depth is arbitrary if A and B agree, so each lane's bytes are one load. Four slots, one
// of each q, are a chunk: 32 values of 16 bits or 16 of float32, and two instructions.
//
// On devices without these instructions (and in simulation) multiply_tile is the twin: it moves the same fragments
// between lanes, adds the same products, and truncates like the tensor cores.
#pragma once

#include "device.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(USE_ROCM)
#define FOURFOLD_TENSOR_CORES 1
#else
#define FOURFOLD_TENSOR_CORES 0
#endif

namespace fourfold::gpu {

// False when NVIDIA's compiler targets a GPU without these instructions: kernels are then empty, because compiling the
// twin takes minutes. limits() keeps the host from launching them.
#if defined(__CUDA_ARCH__) && !defined(USE_ROCM)
constexpr bool tile_products_here = FOURFOLD_TENSOR_CORES;
#else
constexpr bool tile_products_here = true;
#endif

struct Slot {
  uint32_t word[4];
};

// The rounding of a kernel's factors: none, or, for float32, to TF32.
enum class Rounding { none, tf32 };

template <typename T>
constexpr int slot_size = 16 / sizeof(T);
template <typename T>
constexpr int chunk_depth = 4 * slot_size<T>;

FOURFOLD_FN float as_float(uint32_t bits) { return __uint_as_float(bits); }
FOURFOLD_FN uint32_t as_bits(float value) { return __float_as_uint(value); }

// Rounds to 10 mantissa bits, to nearest, ties away from zero, like cvt.rna.tf32.
FOURFOLD_FN uint32_t to_tf32(float value) {
#if FOURFOLD_TENSOR_CORES
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = as_bits(value);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
#endif
}

// One instruction: two words of each of A's two rows, and two of B's column.
template <typename T>
struct Instruction;

FOURFOLD_FN int exponent_of(float value) { return max(1, static_cast<int>(as_bits(value) >> 23 & 0xff)); }

// The tensor cores add integers on the scale of the largest term, with one bit more than float32. They truncate the
// terms and the sum instead of rounding.
constexpr int kept_bits = 1;

FOURFOLD_FN int64_t on_scale(float value, int exponent) {
  const uint32_t bits = as_bits(value);
  const int64_t mantissa = (bits & 0x7fffffu) | ((bits & 0x7f800000u) != 0 ? 0x800000u : 0u);
  const int shift = exponent - exponent_of(value);
  const int64_t cut = shift > 40 ? 0 : mantissa << kept_bits >> shift;
  return (bits & 0x80000000u) != 0 ? -cut : cut;
}

template <int terms>
FOURFOLD_FN float cut_off_sum(float sum, const float (&products)[terms]) {
  int exponent = exponent_of(sum);
  for (int n = 0; n < terms; ++n) exponent = max(exponent, exponent_of(products[n]));
  if (exponent == 0xff) {
    for (int n = 0; n < terms; ++n) sum += products[n];
    return sum;
  }
  int64_t total = on_scale(sum, exponent);
  for (int n = 0; n < terms; ++n) total += on_scale(products[n], exponent);
  uint64_t size = static_cast<uint64_t>(total < 0 ? -total : total);
  int shift = 0;
  while (size >> shift >= uint64_t(1) << 24) ++shift;
  size = size >> shift << shift;
  return ::ldexpf(total < 0 ? -static_cast<float>(size) : static_cast<float>(size), exponent - 127 - 23 - kept_bits);
}

// A lane's operands of an instruction.
struct Fragment {
  uint32_t top[2];
  uint32_t bottom[2];
  uint32_t column[2];
};

class Fragments {
 public:
#if defined(FOURFOLD_SIMULATION)
  explicit FOURFOLD_FN Fragments(const Fragment& mine) : all_(gpusim::warp_exchange(&mine, sizeof(mine))) {}
  FOURFOLD_FN Fragment of(int lane) const {
    const int first = static_cast<int>(threadIdx.x) % warpSize / group_size * group_size;
    return all_.get<Fragment>(first + lane);
  }

 private:
  gpusim::WarpView all_;  // one exchange instead of one per word
#else
  explicit FOURFOLD_FN Fragments(const Fragment& mine) : mine_(mine) {}
  FOURFOLD_FN Fragment of(int lane) const {
    Fragment result;
    for (int word = 0; word < 2; ++word) {
      result.top[word] = from_lane(mine_.top[word], lane);
      result.bottom[word] = from_lane(mine_.bottom[word], lane);
      result.column[word] = from_lane(mine_.column[word], lane);
    }
    return result;
  }

 private:
  Fragment mine_;
#endif
};

// The twin's sum over the four lanes of a row or column. product(a, b, n): the n-th of a word's `per_word` products.
template <int per_word, typename Product>
FOURFOLD_FN void multiply_by_lanes(float (&sum)[4], const uint32_t (&top)[2], const uint32_t (&bottom)[2],
                                   const uint32_t (&column)[2], Product product) {
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const Fragments lanes({{top[0], top[1]}, {bottom[0], bottom[1]}, {column[0], column[1]}});
  float products[4][8 * per_word];
  for (int k = 0; k < 4; ++k) {
    const Fragment rows = lanes.of(lane / 4 * 4 + k);
    const Fragment columns[2] = {lanes.of(lane % 4 * 8 + k), lanes.of(lane % 4 * 8 + 4 + k)};
    for (int at = 0; at < 2 * per_word; ++at) {
      const int word = at / per_word;
      for (int j = 0; j < 4; ++j) {
        const uint32_t a = j < 2 ? rows.top[word] : rows.bottom[word];
        products[j][k * 2 * per_word + at] = product(a, columns[j % 2].column[word], at % per_word);
      }
    }
  }
  for (int j = 0; j < 4; ++j) sum[j] = cut_off_sum(sum[j], products[j]);
}

template <>
struct Instruction<float> {
  static FOURFOLD_FN void multiply(float (&sum)[4], const uint32_t (&top)[2], const uint32_t (&bottom)[2],
                                   const uint32_t (&column)[2]) {
#if FOURFOLD_TENSOR_CORES
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(top[0]), "r"(bottom[0]), "r"(top[1]), "r"(bottom[1]), "r"(column[0]), "r"(column[1]));
#else
    multiply_by_lanes<1>(sum, top, bottom, column, [](uint32_t a, uint32_t b, int) {
      return as_float(a & 0xffffe000u) * as_float(b & 0xffffe000u);  // the other bits are ignored
    });
#endif
  }
};

template <>
struct Instruction<BFloat16> {
  static FOURFOLD_FN void multiply(float (&sum)[4], const uint32_t (&top)[2], const uint32_t (&bottom)[2],
                                   const uint32_t (&column)[2]) {
#if FOURFOLD_TENSOR_CORES
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(top[0]), "r"(bottom[0]), "r"(top[1]), "r"(bottom[1]), "r"(column[0]), "r"(column[1]));
#else
    multiply_by_lanes<2>(sum, top, bottom, column, [](uint32_t a, uint32_t b, int place) {
      return place == 0 ? as_float(a << 16) * as_float(b << 16)
                        : as_float(a & 0xffff0000u) * as_float(b & 0xffff0000u);
    });
#endif
  }
};

template <>
struct Instruction<Half> {
  static FOURFOLD_FN void multiply(float (&sum)[4], const uint32_t (&top)[2], const uint32_t (&bottom)[2],
                                   const uint32_t (&column)[2]) {
#if FOURFOLD_TENSOR_CORES
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(top[0]), "r"(bottom[0]), "r"(top[1]), "r"(bottom[1]), "r"(column[0]), "r"(column[1]));
#else
    multiply_by_lanes<2>(sum, top, bottom, column, [](uint32_t a, uint32_t b, int place) {
      return half_at(a, place) * half_at(b, place);
    });
#endif
  }

 private:
  static FOURFOLD_FN float half_at(uint32_t word, int place) {
    Half value;
    value.x = static_cast<uint16_t>(word >> (16 * place));
    return static_cast<float>(value);
  }
};

template <typename T>
FOURFOLD_FN void multiply_words(float (&sum)[4], const Slot& top, const Slot& bottom, const Slot& column) {
  for (int half = 0; half < 4; half += 2) {
    Instruction<T>::multiply(sum, {top.word[half], top.word[half + 1]}, {bottom.word[half], bottom.word[half + 1]},
                             {column.word[half], column.word[half + 1]});
  }
}

FOURFOLD_FN Slot rounded(const Slot& slot) {
  Slot result;
  for (int w = 0; w < 4; ++w) result.word[w] = to_tf32(as_float(slot.word[w]));
  return result;
}

// A float32 as the sum of a high part, rounded to 11 bits, and a low part, of which the tensor cores use 11 bits.
// Truncated high parts would take one instruction less, but leave low parts of the number's own sign, whose products,
// which are left out, add up. Integers, because conversions have a low throughput.
struct Parts {
  Slot high;
  Slot low;
  Slot finite;  // the high part, or 0 for infinity and NaN: their products with low parts of either sign would be NaN

  explicit FOURFOLD_FN Parts(const Slot& slot) {
    for (int w = 0; w < 4; ++w) {
      const uint32_t bits = slot.word[w];
      const bool rounds = (bits & 0x7fffffffu) < 0x7f7ff000u;  // to a finite number
      high.word[w] = (rounds ? bits + 0x1000u : bits) & 0xffffe000u;
      low.word[w] = rounds ? as_bits(as_float(bits) - as_float(high.word[w])) : 0u;
      finite.word[w] = rounds ? high.word[w] : 0u;
    }
  }
};

// The unchanged slot, opaque to the compiler: otherwise it would hoist the split of weights into parts out of the loop
// over steps, which doubles their registers.
FOURFOLD_FN Slot anew(Slot slot) {
#if FOURFOLD_TENSOR_CORES
  asm volatile("" : "+r"(slot.word[0]), "+r"(slot.word[1]), "+r"(slot.word[2]), "+r"(slot.word[3]));
#endif
  return slot;
}

// sum += a chunk of A times a chunk of B. Unrounded float32 takes three products of its high and low parts, with an
// error below 2^-21 of each product.
template <typename T, Rounding rounding>
FOURFOLD_FN void multiply_tile(float (&sum)[4], const Slot& top, const Slot& bottom, const Slot& column) {
  if constexpr (!std::is_same_v<T, float>) {
    multiply_words<T>(sum, top, bottom, column);
  } else if constexpr (rounding == Rounding::tf32) {
    multiply_words<float>(sum, rounded(top), rounded(bottom), rounded(column));
  } else {
    const Parts parts[] = {Parts(top), Parts(bottom), Parts(anew(column))};
    multiply_words<float>(sum, parts[0].low, parts[1].low, parts[2].finite);
    multiply_words<float>(sum, parts[0].finite, parts[1].finite, parts[2].low);
    multiply_words<float>(sum, parts[0].high, parts[1].high, parts[2].high);
  }
}

}  // namespace fourfold::gpu
