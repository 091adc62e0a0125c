// Barriers, warp operations and arithmetic functions of device code.
#pragma once

#include <math.h>

#include <bit>
#include <concepts>

#include "gpusim.h"

#pragma GCC visibility push(hidden)

namespace gpusim {
inline Votes block_barrier(const char* operation, int predicate, Site site) {
  const Unwatched unwatched;
  return current->block->scheduler->barrier(*current, operation, predicate != 0, site);
}
}  // namespace gpusim

// The last parameter of functions that can wait is the call's source location, for the reports.

inline void __syncthreads(gpusim::Site site = gpusim::Site::current()) {
  gpusim::block_barrier("__syncthreads", 0, site);
}

inline int __syncthreads_or(int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::block_barrier("__syncthreads_or", predicate, site).any;
}

inline int __syncthreads_and(int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::block_barrier("__syncthreads_and", predicate, site).all;
}

inline int __syncthreads_count(int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::block_barrier("__syncthreads_count", predicate, site).count;
}

namespace gpusim {

// HIP rejects a 32-bit mask, because on a wavefront of 64 it would leave out half of the lanes.
template <typename T>
concept LaneMask = std::integral<T> && sizeof(T) == 8;

template <typename T>
concept Shuffled = std::is_arithmetic_v<T> && sizeof(T) >= 4;

struct Ballot {
  uint64_t votes, arrived;
};

inline Ballot vote(uint64_t mask, int predicate, const char* operation, Site site) {
  const Unwatched unwatched;
  const Meeting& meeting =
      current->block->scheduler->meet(*current, mask, operation, nullptr, 0, predicate != 0, false, site);
  return {meeting.votes, meeting.arrived};
}

// A lane that is not in the mask or has ended has no value: its result is junk.
template <Shuffled T>
T shuffle(uint64_t mask, T value, unsigned from, const char* operation, Site site) {
  const Unwatched unwatched;
  const Meeting& meeting =
      current->block->scheduler->meet(*current, mask, operation, &value, sizeof(T), false, false, site);
  std::memcpy(&value, &meeting.data[from * sizeof(T)], sizeof(T));
  return value;
}

inline void check_width(int width) {
  if (width < 1 || width > static_cast<int>(warp_width) || !std::has_single_bit(static_cast<unsigned>(width))) {
    fail("a shuffle has width %d, which is no power of two up to the warp's %u", width, warp_width);
  }
}

inline unsigned lane() {
  const Unwatched unwatched;
  return current->lane;
}

inline unsigned lane_at(int source, int width) {
  check_width(width);
  return (lane() & ~(static_cast<unsigned>(width) - 1)) + (static_cast<unsigned>(source) & (width - 1));
}

inline unsigned lane_above(unsigned delta, int width) {
  check_width(width);
  return (lane() & (width - 1)) < delta ? lane() : lane() - delta;
}

inline unsigned lane_below(unsigned delta, int width) {
  check_width(width);
  const uint64_t to = uint64_t{lane() & (width - 1)} + delta;
  return to >= static_cast<unsigned>(width) ? lane() : lane() + delta;
}

inline unsigned lane_across(int bits, int width) {
  check_width(width);
  const unsigned to = lane() ^ static_cast<unsigned>(bits);
  const unsigned end = (lane() & ~(static_cast<unsigned>(width) - 1)) + width;
  return to >= end ? lane() : to;
}

}  // namespace gpusim

// Without a mask all lanes that have not ended must take part: divergent calls are reported.

template <gpusim::Shuffled T>
T __shfl(T value, int lane, int width = gpusim::warp_width, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(gpusim::full_mask, value, gpusim::lane_at(lane, width), "__shfl", site);
}

template <gpusim::Shuffled T>
T __shfl_up(T value, unsigned delta, int width = gpusim::warp_width, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(gpusim::full_mask, value, gpusim::lane_above(delta, width), "__shfl_up", site);
}

template <gpusim::Shuffled T>
T __shfl_down(T value, unsigned delta, int width = gpusim::warp_width, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(gpusim::full_mask, value, gpusim::lane_below(delta, width), "__shfl_down", site);
}

template <gpusim::Shuffled T>
T __shfl_xor(T value, int bits, int width = gpusim::warp_width, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(gpusim::full_mask, value, gpusim::lane_across(bits, width), "__shfl_xor", site);
}

template <gpusim::LaneMask M, gpusim::Shuffled T>
T __shfl_sync(M mask, T value, int lane, int width = gpusim::warp_width, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(mask, value, gpusim::lane_at(lane, width), "__shfl_sync", site);
}

template <gpusim::LaneMask M, gpusim::Shuffled T>
T __shfl_up_sync(M mask, T value, unsigned delta, int width = gpusim::warp_width,
                 gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(mask, value, gpusim::lane_above(delta, width), "__shfl_up_sync", site);
}

template <gpusim::LaneMask M, gpusim::Shuffled T>
T __shfl_down_sync(M mask, T value, unsigned delta, int width = gpusim::warp_width,
                   gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(mask, value, gpusim::lane_below(delta, width), "__shfl_down_sync", site);
}

template <gpusim::LaneMask M, gpusim::Shuffled T>
T __shfl_xor_sync(M mask, T value, int bits, int width = gpusim::warp_width, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::shuffle(mask, value, gpusim::lane_across(bits, width), "__shfl_xor_sync", site);
}

inline unsigned long long __ballot(int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::vote(gpusim::full_mask, predicate, "__ballot", site).votes;
}

inline int __any(int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::vote(gpusim::full_mask, predicate, "__any", site).votes != 0;
}

inline int __all(int predicate, gpusim::Site site = gpusim::Site::current()) {
  const gpusim::Ballot ballot = gpusim::vote(gpusim::full_mask, predicate, "__all", site);
  return ballot.votes == ballot.arrived;
}

template <gpusim::LaneMask M>
unsigned long long __ballot_sync(M mask, int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::vote(mask, predicate, "__ballot_sync", site).votes;
}

template <gpusim::LaneMask M>
int __any_sync(M mask, int predicate, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::vote(mask, predicate, "__any_sync", site).votes != 0;
}

template <gpusim::LaneMask M>
int __all_sync(M mask, int predicate, gpusim::Site site = gpusim::Site::current()) {
  const gpusim::Ballot ballot = gpusim::vote(mask, predicate, "__all_sync", site);
  return ballot.votes == ballot.arrived;
}

// The lanes that have not ended. The simulator doesn't know which of them have converged.
inline unsigned long long __activemask() {
  const gpusim::Unwatched unwatched;
  return gpusim::current->warp->live;
}

// Unlike the other warp operations it orders memory, among the lanes of its mask.
template <gpusim::LaneMask M = unsigned long long>
void __syncwarp(M mask = ~0ull, gpusim::Site site = gpusim::Site::current()) {
  const gpusim::Unwatched unwatched;
  gpusim::current->block->scheduler->meet(*gpusim::current, mask, "__syncwarp", nullptr, 0, false, true, site);
}

inline void __builtin_amdgcn_wave_barrier(gpusim::Site site = gpusim::Site::current()) { __syncwarp(~0ull, site); }

inline void __nanosleep(unsigned, gpusim::Site site = gpusim::Site::current()) { gpusim::yield(site); }
#define __builtin_amdgcn_s_sleep(length) gpusim::yield()

inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline long long wall_clock64() { return clock64(); }

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

// As on the device, the floating-point ones return the number if the other operand is NaN.
template <typename A, typename B>
  requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(std::fmin(static_cast<T>(a), static_cast<T>(b)));
  else return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

template <typename A, typename B>
  requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(std::fmax(static_cast<T>(a), static_cast<T>(b)));
  else return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

#pragma GCC visibility pop
