// A case of the self-test: its name on the command line, and a function that returns whether the kernel was correct.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

struct Case {
  const char* name;
  bool (*run)();
};

const std::vector<Case>& right_cases();
const std::vector<Case>& host_cases();
const std::vector<Case>& device_cases();
const std::vector<Case>& faulty_cases();

// Managed memory of exactly `size` elements, freed at the end of the case. Reading it waits for the device first.
template <typename T>
class Array {
 public:
  explicit Array(size_t size, T value = T()) : size_(size) {
    if (hipMallocManaged(&data_, size * sizeof(T)) != hipSuccess) std::abort();
    for (size_t k = 0; k < size; ++k) data_[k] = value;
  }
  ~Array() { (void)hipFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t k) {
    (void)hipDeviceSynchronize();
    return data_[k];
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

inline bool launched() {
  const hipError_t error = hipGetLastError();
  if (error != hipSuccess) std::fprintf(stderr, "launch: %s\n", hipGetErrorString(error));
  return error == hipSuccess && hipDeviceSynchronize() == hipSuccess;
}

inline bool same(const char* what, double got, double wanted) {
  if (got != wanted) std::fprintf(stderr, "%s is %.9g instead of %.9g\n", what, got, wanted);
  return got == wanted;
}

namespace {

constexpr unsigned long long all_lanes = ~0ull;

__global__ void add_one(int* out) { *out += 1; }

[[maybe_unused]] bool is(hipError_t got, hipError_t wanted) {
  if (got != wanted) std::fprintf(stderr, "%s instead of %s\n", hipGetErrorName(got), hipGetErrorName(wanted));
  return got == wanted;
}

}  // namespace
