// Registers an elementwise operator of a backend: its bodies, bound to the backend's kernels.
#pragma once

#include <string>

#include "ops/backend.h"
#include "ops/elementwise.h"
#include "ops/stable.h"

namespace fourfold {

// Bodies: a struct with `forward` and optionally `backward`.
template <typename Bodies, const ElementwiseKernels& kernels, typename Library>
void register_elementwise(Library& library, const std::string& name) {
  library.impl(name.c_str(), TORCH_BOX((&Bound<&Bodies::forward, &kernels>::call)));
  if constexpr (requires { &Bodies::backward; }) {
    library.impl((name + "_backward").c_str(), TORCH_BOX((&Bound<&Bodies::backward, &kernels>::call)));
  }
}

}  // namespace fourfold
