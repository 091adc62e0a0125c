// How one body serves every backend: an operator checks, allocates and calls torch's own products the same way
// everywhere, and is handed a backend's kernels as its first argument.
#pragma once

namespace fourfold {

// The body with a backend's kernels given: what that backend registers under its dispatch key.
template <auto body, auto* kernels, typename = decltype(body)>
struct Bound;

template <auto body, auto* kernels, typename Result, typename Kernels, typename... Arguments>
struct Bound<body, kernels, Result (*)(const Kernels&, Arguments...)> {
  static Result call(Arguments... arguments) { return body(*kernels, arguments...); }
};

}  // namespace fourfold

#define FOURFOLD_BOX(body, kernels) TORCH_BOX((&fourfold::Bound<&fourfold::body, &fourfold::kernels>::call))
