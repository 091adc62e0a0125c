// Registration of libfourfold's operators by torch's macros, only in the first copy of the library that a process
// loads: torch throws if an operator is defined twice, and during static initialisation this terminates the process.
#pragma once

#include "ops/stable.h"

namespace fourfold {

// The error if another copy of libfourfold has registered its operators in this process; null in the first copy.
const char* other_copy_error();

}  // namespace fourfold

// FOURFOLD_OPERATORS(m) { m.def(…); }
#define FOURFOLD_OPERATORS(m) FOURFOLD_UNLESS_COPY(STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, library), define_operators, m)
// FOURFOLD_KERNELS(CPU, m) { m.impl(…); }
#define FOURFOLD_KERNELS(key, m) FOURFOLD_UNLESS_COPY(STABLE_TORCH_LIBRARY_IMPL(fourfold, key, library), add_kernels, m)
#define FOURFOLD_UNLESS_COPY(registration, function, m)                                           \
  static void function(torch::stable::detail::StableLibrary&);                                    \
  registration { if (fourfold::other_copy_error() == nullptr) function(library); }                \
  static void function(torch::stable::detail::StableLibrary& m)
