// Runs the recurrent layers, forward and backward, in regions of threads that come in time, late, or not at all, and
// from two threads at once; and compares: shares decide the bits, threads do not. ThreadSanitizer watches.
//
//   races [CELL [LAYER]]    on the level that FOURFOLD_CPU_CAPABILITY names; LAYER counts from 0
#include <torch/headeronly/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "cpu/kernels/cell.h"
#include "layer.h"
#include "region.h"

namespace fourfold::races {
namespace {

// Work for three threads; the second and the fourth layer have more weights than one thread's cache should hold.
constexpr int64_t shares = 3;
constexpr Shape shapes[] = {
    {"shared out by rows", Kind::float32, 225, 40, 24, 40, false},
    {"shared out by units", Kind::float32, 100, 4, 100, 200, false},
    {"uneven, by rows", Kind::float32, 290, 41, 24, 40, true},
    {"uneven, by units", Kind::float32, 130, 5, 100, 200, true},
    {"by rows, in float64", Kind::float64, 225, 40, 24, 40, false},
    {"by rows, in bfloat16", Kind::bfloat16, 225, 40, 24, 40, false},
    {"uneven, by units, in bfloat16", Kind::bfloat16, 130, 5, 100, 200, true},
    {"few rows, their weights where they lie", Kind::float32, 15, 4, 200, 220, false},
    {"few rows, uneven, in float64", Kind::float64, 6, 2, 200, 220, true},
    {"few rows, in bfloat16", Kind::bfloat16, 15, 4, 200, 220, false},
};

int failures = 0;

void expect(bool holds, const Cell& cell, const Shape& shape, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("%s, %s: expected %s\n", cell.name, shape.name, what);
}

template <typename S>
bool same_bits(const Results<S>& a, const Results<S>& b) {
  for (size_t k = 0; k < a.size(); ++k) {
    if (std::memcmp(a[k].data(), b[k].data(), a[k].size() * sizeof(S)) != 0) return false;
  }
  return true;
}

// Shares sum the weights' gradients in another order: some ten thousand terms that may cancel, so their rounding error
// is measured relative to a tensor's largest sum.
template <typename S>
bool close(const Results<S>& a, const Results<S>& b) {
  constexpr double allowed = sizeof(S) == 2 ? 2e-2 : sizeof(S) == 4 ? 1e-4 : 1e-12;
  for (size_t k = 0; k < a.size(); ++k) {
    double largest = 0;
    double difference = 0;
    for (size_t at = 0; at < a[k].size(); ++at) {
      if (!std::isfinite(a[k][at])) return false;
      largest = std::max(largest, std::abs(static_cast<double>(b[k][at])));
      difference = std::max(difference, std::abs(static_cast<double>(a[k][at]) - static_cast<double>(b[k][at])));
    }
    if (difference > largest * allowed) return false;
  }
  return true;
}

template <typename S>
void check(const Cell& cell, const Shape& shape) {
  const Layer<S> layer(cell, shape);
  const auto run = [&](Region how) {
    region = how;
    return layer.run();
  };
  const Results<S> expected = run({shares, 1, 1});
  expect(last_shares() == shares, cell, shape, "work enough for three shares");
  expect(close(run({1, 1, 1}), expected), cell, shape, "one share to compute what three do");
  expect(same_bits(run({shares, 3, 3}), expected), cell, shape, "the same bits of three threads");
  expect(same_bits(run({shares, 2, 2}), expected), cell, shape, "the same bits of two threads with three shares");
  expect(same_bits(run({shares, 3, 2}), expected), cell, shape, "the same bits when the third thread is late");

  Results<S> ours;
  Results<S> theirs;
  std::thread other([&] { theirs = run({shares, 2, 2}); });
  ours = run({shares, 2, 2});
  other.join();
  expect(same_bits(ours, expected) && same_bits(theirs, expected), cell, shape, "the same bits of two calls at once");
}

}  // namespace
}  // namespace fourfold::races

int main(int count, char** words) {
  using namespace fourfold;
  int ran = 0;
  for (const races::Cell& cell : races::cells) {
    if (count > 1 && std::strcmp(words[1], cell.name) != 0) continue;
    for (const races::Shape& shape : races::shapes) {
      if (count > 2 && &shape != races::shapes + std::atoi(words[2])) continue;
      switch (shape.kind) {
        case Kind::float64: races::check<double>(cell, shape); break;
        case Kind::float32: races::check<float>(cell, shape); break;
        default:
          if (!cpu::Bfloat16Kernel<cpu::CellKernelsOf>::available()) {
            std::printf("%s, %s: left out, for this level has no kernels of it\n", cell.name, shape.name);
            continue;
          }
          races::check<c10::BFloat16>(cell, shape);
      }
      ++ran;
    }
  }
  std::printf("%s: %d layers, %d failures\n", cpu::level_choice().name, ran, races::failures);
  return ran == 0 || races::failures != 0;
}
