#include "cpu/kernels/transpose_tile.h"

#include "cpu/kernels/transpose.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

// Columns side by side, of a number that the compiler knows.
template <int64_t columns, typename T>
void interleave(const T* from, int64_t from_step, T* to, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[r * columns + c] = from[c * from_step + r];
  }
}

// Transposes in squares whose cache lines stay in the L1 cache.
template <typename T>
void transpose_one_by_one(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows, int64_t columns) {
  constexpr int64_t square = 16;
  if (to_step == columns) {
    switch (columns) {
      case 2: return interleave<2>(from, from_step, to, rows);
      case 4: return interleave<4>(from, from_step, to, rows);
      case 8: return interleave<8>(from, from_step, to, rows);
      default: break;
    }
  }
  for (int64_t first = 0; first < columns; first += square) {
    const int64_t last = first + square < columns ? first + square : columns;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = first; c < last; ++c) to[r * to_step + c] = from[c * from_step + r];
    }
  }
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#if defined(CPU_CAPABILITY_AVX512)
constexpr int64_t lanes = 16;
void transpose_square(const float* from, int64_t from_step, float* to, int64_t to_step) {
  transpose_16(from, from_step * int64_t(sizeof(float)), to, to_step);
}
#else
constexpr int64_t lanes = 8;
void transpose_square(const float* from, int64_t from_step, float* to, int64_t to_step) {
  transpose_8(from, from_step, to, to_step);
}
#endif
void transpose_square(const uint16_t* from, int64_t from_step, uint16_t* to, int64_t to_step) {
  transpose_8(from, from_step, to, to_step);
}

// In squares in registers, of which the last ones overlap those before them.
template <int64_t square, typename T>
void transpose_squares(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows, int64_t columns) {
  if (rows < square || columns < square) return transpose_one_by_one(from, from_step, to, to_step, rows, columns);
  constexpr int64_t ahead = 2;
  const auto place = [](int64_t k, int64_t count) { return k + square <= count ? k : count - square; };
  // The hardware doesn't prefetch lines with large strides.
  if (columns > rows) {
    for (int64_t first = 0; first < columns; first += square) {
      const int64_t c = place(first, columns);
      for (int64_t k = 0; k < square; ++k) {
        for (int64_t r = 0; r < rows; r += square) __builtin_prefetch(from + (c + ahead * square + k) * from_step + r);
      }
      for (int64_t r = 0; r < rows; r += square) {
        const int64_t own = place(r, rows);
        transpose_square(from + c * from_step + own, from_step, to + own * to_step + c, to_step);
      }
    }
  } else {
    for (int64_t first = 0; first < rows; first += square) {
      const int64_t r = place(first, rows);
      for (int64_t k = 0; k < square; ++k) {
        for (int64_t c = 0; c < columns; c += square) __builtin_prefetch(to + (r + ahead * square + k) * to_step + c, 1);
      }
      for (int64_t c = 0; c < columns; c += square) {
        const int64_t own = place(c, columns);
        transpose_square(from + own * from_step + r, from_step, to + r * to_step + own, to_step);
      }
    }
  }
}
#else
constexpr int64_t lanes = 8;
template <int64_t square, typename T>
void transpose_squares(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows, int64_t columns) {
  transpose_one_by_one(from, from_step, to, to_step, rows, columns);
}
#endif

template <typename T>
void transpose(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t rows, int64_t columns) {
  transpose_one_by_one(static_cast<const T*>(from), from_step, static_cast<T*>(to), to_step, rows, columns);
}

}  // namespace

void transpose_tile(
    int64_t size, const void* from, int64_t from_step, void* to, int64_t to_step, int64_t rows, int64_t columns) {
  switch (size) {
    case 1: return transpose<uint8_t>(from, from_step, to, to_step, rows, columns);
    case 2:
      return transpose_squares<8>(static_cast<const uint16_t*>(from), from_step, static_cast<uint16_t*>(to), to_step, rows, columns);
    case 4:
      return transpose_squares<lanes>(static_cast<const float*>(from), from_step, static_cast<float*>(to), to_step, rows, columns);
    default: return transpose<uint64_t>(from, from_step, to, to_step, rows, columns);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
