#include "cpu/kernels/activate.h"

#include "cpu/kernels/activations.h"
#include "cpu/kernels/apply.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void activate(Activation activation, const Elementwise& job, int64_t begin, int64_t end) {
  visit_compute(job.kind, [&](auto s) {
    using S = decltype(s);
    visit_activation(activation, [&](auto f) {
      for_runs<S>(job, begin, end, std::make_index_sequence<1>(), [&](int64_t count, S* to, const auto& z) {
        map<S>(count, to, [&](const Vec<S>& v) { return f.value(v); }, z);
      });
    });
  });
}

void activate_backward(Activation activation, const Elementwise& job, int64_t begin, int64_t end) {
  visit_compute(job.kind, [&](auto s) {
    using S = decltype(s);
    visit_activation(activation, [&](auto f) {
      for_runs<S>(job, begin, end, std::make_index_sequence<2>(), [&](int64_t count, S* to, const auto&... in) {
        map<S>(count, to, [&](const Vec<S>& g, const Vec<S>& k) { return f.backward(g, k); }, in...);
      });
    });
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
