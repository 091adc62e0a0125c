// Traits of an elementwise formula (ops/elementwise_job.h). Define FOURFOLD_FN before including it.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "ops/elementwise_job.h"

namespace fourfold {

// One index for each input of a formula's function.
template <typename Result, typename Formula, typename... Inputs>
std::index_sequence_for<Inputs...> indices_of(Result (Formula::*)(Inputs...) const);

// A formula's functions; call() takes as many values as Indices has.
template <template <typename> typename Formula>
struct Forward {
  using Indices = decltype(indices_of(&Formula<float>::forward));
  template <typename V, typename... Inputs>
  static FOURFOLD_FN V call(const Formula<V>& formula, const Inputs&... in) {
    return formula.forward(in...);
  }
};

template <template <typename> typename Formula>
struct Backward {
  using Indices = decltype(indices_of(&Formula<float>::backward));
  template <typename V, typename... Inputs>
  static FOURFOLD_FN V call(const Formula<V>& formula, const Inputs&... in) {
    return formula.backward(in...);
  }
};

template <template <typename> typename Formula>
inline constexpr bool has_backward = requires { &Formula<float>::backward; };

template <template <typename> typename Formula>
inline constexpr size_t scalars_of = std::is_empty_v<Formula<float>> ? 0 : sizeof(Formula<float>) / sizeof(float);

// The formula with the job's scalars converted to its number type.
template <template <typename> typename Formula, typename V, typename Convert>
Formula<V> formula_of(const Elementwise& job, const Convert& convert) {
  return [&]<size_t... k>(std::index_sequence<k...>) {
    return Formula<V>{convert(job.scalar[k])...};
  }(std::make_index_sequence<scalars_of<Formula>>());
}

// Integer formulas compute in unsigned arithmetic, where wrapping around, as in torch, is defined behaviour.
template <template <typename> typename Formula>
Formula<uint64_t> formula_of_integers(const Elementwise& job) {
  return formula_of<Formula, uint64_t>(
      job, [](double scalar) { return static_cast<uint64_t>(static_cast<int64_t>(scalar)); });
}

}  // namespace fourfold
