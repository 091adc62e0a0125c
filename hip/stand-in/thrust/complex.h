// Replaces rocThrust's <thrust/complex.h>, which torch's complex.h includes under a HIP compiler, and which Debian's
// packages of ROCm lack. No kernel of fourfold uses complex numbers, so polar is only declared.
#pragma once

#include <hip/hip_runtime.h>

namespace thrust {

template <typename T>
struct complex {
  __host__ __device__ complex(T real = T(), T imag = T()) : real_(real), imag_(imag) {}
  template <typename U>
  __host__ __device__ complex(const complex<U>& other) : real_(T(other.real())), imag_(T(other.imag())) {}
  __host__ __device__ T real() const { return real_; }
  __host__ __device__ T imag() const { return imag_; }

 private:
  T real_;
  T imag_;
};

template <typename T, typename U>
__host__ __device__ complex<T> polar(const T& magnitude, const U& angle);

}  // namespace thrust
