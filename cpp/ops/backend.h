// Operator bodies are shared by all backends: a body checks, allocates and calls torch's products, and takes the
// backend's kernels as its first argument.
#pragma once

namespace fourfold {

// A body bound to a backend's kernels, which that backend registers under its dispatch key.
template <auto body, auto* kernels, typename = decltype(body)>
struct Bound;

template <auto body, auto* kernels, typename Result, typename Kernels, typename... Arguments>
struct Bound<body, kernels, Result (*)(const Kernels&, Arguments...)> {
  static Result call(Arguments... arguments) { return body(*kernels, arguments...); }
};

}  // namespace fourfold

#define FOURFOLD_BOX(body, kernels) TORCH_BOX((&fourfold::Bound<&fourfold::body, &fourfold::kernels>::call))
