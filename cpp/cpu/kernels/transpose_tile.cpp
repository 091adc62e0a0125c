#include "cpu/kernels/transpose_tile.h"

#include "cpu/kernels/transpose.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int64_t square = 16;
void transpose_square(const float* from, int64_t from_step, float* to, int64_t to_step) {
  transpose_16(from, from_step * int64_t(sizeof(float)), to, to_step);
}
#elif defined(CPU_CAPABILITY_AVX2)
constexpr int64_t square = 8;
void transpose_square(const float* from, int64_t from_step, float* to, int64_t to_step) {
  transpose_8(from, from_step, to, to_step);
}
#else
constexpr int64_t square = 8;
#endif
[[maybe_unused]] constexpr int64_t ahead = 2;

// Transposes in squares whose cache lines stay in the L1 cache.
template <typename T>
void transpose_one_by_one(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows, int64_t columns) {
  for (int64_t first = 0; first < columns; first += square) {
    const int64_t last = first + square < columns ? first + square : columns;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = first; c < last; ++c) to[r * to_step + c] = from[c * from_step + r];
    }
  }
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
void transpose_float(const float* from, int64_t from_step, float* to, int64_t to_step, int64_t rows, int64_t columns) {
  const int64_t whole_rows = rows / square * square;
  const int64_t whole_columns = columns / square * square;
  // The hardware doesn't prefetch lines with large strides.
  if (columns > rows) {
    for (int64_t c = 0; c < whole_columns; c += square) {
      for (int64_t k = 0; k < square; ++k) {
        for (int64_t r = 0; r < whole_rows; r += square) __builtin_prefetch(from + (c + ahead * square + k) * from_step + r);
      }
      for (int64_t r = 0; r < whole_rows; r += square) {
        transpose_square(from + c * from_step + r, from_step, to + r * to_step + c, to_step);
      }
    }
  } else {
    for (int64_t r = 0; r < whole_rows; r += square) {
      for (int64_t k = 0; k < square; ++k) {
        for (int64_t c = 0; c < whole_columns; c += square) __builtin_prefetch(to + (r + ahead * square + k) * to_step + c, 1);
      }
      for (int64_t c = 0; c < whole_columns; c += square) {
        transpose_square(from + c * from_step + r, from_step, to + r * to_step + c, to_step);
      }
    }
  }
  transpose_one_by_one(from + whole_columns * from_step, from_step, to + whole_columns, to_step, whole_rows,
                       columns - whole_columns);
  transpose_one_by_one(from + whole_rows, from_step, to + whole_rows * to_step, to_step, rows - whole_rows, columns);
}
#else
void transpose_float(const float* from, int64_t from_step, float* to, int64_t to_step, int64_t rows, int64_t columns) {
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
    case 2: return transpose<uint16_t>(from, from_step, to, to_step, rows, columns);
    case 4:
      return transpose_float(static_cast<const float*>(from), from_step, static_cast<float*>(to), to_step, rows, columns);
    default: return transpose<uint64_t>(from, from_step, to, to_step, rows, columns);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
