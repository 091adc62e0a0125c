// Runs every operator of libfourfold, forward and backward, in a C++ program without Python, and compares with plain
// ATen and its gradients: `run_operators LEVEL`, which must be the CPU level in use. With a second argument, only
// float32 is compared.
#include <ATen/ATen.h>
#include <fourfold/autograd.h>
#include <fourfold/fourfold.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using at::Tensor;
using Tensors = std::vector<Tensor>;

namespace {

int failures = 0;
// An emulated CPU spends most of its time on ATen's reference for each type.
bool only_run = false;

void fail(const std::string& what) {
  ++failures;
  std::cout << what << "\n";
}

// The operators with products compute float16 and bfloat16 in float32; the reference rounds at every step.
double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return 1e-12;
    case at::kFloat: return 2e-5;
    case at::kHalf: return 1e-2;
    default: return 8e-2;
  }
}

void compare(const std::string& what, const Tensor& got, const Tensor& want) {
  const bool same_kind = got.defined() && got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type();
  const double bound = tolerance(want.scalar_type());
  if (same_kind && at::allclose(got.to(at::kDouble), want.to(at::kDouble), bound, bound, /*equal_nan=*/true)) return;
  fail(what + " of " + c10::toString(want.scalar_type()) + ": differs from ATen" +
       (same_kind ? " by " + std::to_string((got - want).abs().max().item<double>()) : ""));
}

using Function = std::function<Tensors(const Tensors&)>;

// Outputs, and the gradients of (output * grad).sum() with respect to the leaves.
Tensors results(const Function& function, const Tensors& given, const Tensors& grads) {
  Tensors leaves;
  for (const Tensor& one : given) leaves.push_back(one.detach().requires_grad_());
  Tensors all = function(leaves);
  Tensor loss = at::zeros({}, all[0].options());
  for (size_t k = 0; k < grads.size(); ++k) loss = loss + (all[k] * grads[k]).sum();
  loss.backward();
  for (Tensor& output : all) output = output.detach();
  for (const Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

void compare_all(const std::string& what, const Function& ours, const Function& own, const Tensors& given,
                 const Tensors& grads) {
  const Tensors got = results(ours, given, grads);
  if (only_run) return;
  const Tensors want = results(own, given, grads);
  for (size_t k = 0; k < want.size(); ++k) {
    const bool output = k < grads.size();
    compare(what + (output ? ", output " : ", gradient ") + std::to_string(output ? k : k - grads.size()), got[k], want[k]);
  }
  const at::NoGradGuard inference;
  const Tensors alone = ours(given);
  for (size_t k = 0; k < alone.size(); ++k) compare(what + " without gradient", alone[k], got[k]);
}

struct Random {
  at::ScalarType dtype;

  Tensor operator()(at::IntArrayRef sizes) const { return at::randn(sizes, at::kDouble).mul_(0.5).to(dtype); }
};

std::tuple<Tensor, Tensor> reference_cell(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const Tensor& bias) {
  const auto gates = at::linear(at::cat({h, x}, 1), weights, bias).chunk(3, 1);
  const Tensor next_c = c + at::sigmoid(gates[0]) * at::elu(gates[2]);
  return {at::sigmoid(gates[1]) * at::tanh(next_c), next_c};
}

Tensors listed(const std::tuple<Tensor, Tensor>& pair) { return {std::get<0>(pair), std::get<1>(pair)}; }
Tensors listed(const std::tuple<Tensor, std::tuple<Tensor, Tensor>>& layer) {
  const auto& [output, state] = layer;
  return {output, std::get<0>(state), std::get<1>(state)};
}

void run_elementwise(const Random& random) {
  // 1001: several vectors of every level, and a tail.
  const Tensors given{random({7, 143}), random({143})};
  const Tensor grad = random({7, 143});
  compare_all("axpby", [](const Tensors& t) { return Tensors{fourfold::axpby(t[0], t[1], 2.5, -0.5)}; },
              [](const Tensors& t) { return Tensors{2.5 * t[0] - 0.5 * t[1]}; }, given, {grad});
  compare_all("softshrink", [](const Tensors& t) { return Tensors{fourfold::softshrink(t[0], 0.25)}; },
              [](const Tensors& t) { return Tensors{at::softshrink(t[0], 0.25)}; }, {given[0]}, {grad});
}

void run_promotion() {
  const Tensor ints = at::arange(5), half = at::ones({5}, at::kHalf), zero = at::full({}, 2.5);
  for (const auto& [x, y] : {std::pair{ints, ints}, {ints, half}, {half, zero}, {ints, zero}, {zero, ints}}) {
    for (const at::Scalar& alpha : {at::Scalar(2), at::Scalar(0.5)}) {
      compare("axpby's promotion", fourfold::axpby(x, y, alpha), alpha * x + 1 * y);
    }
  }
}

void run_lltm_cell(const Random& random, int64_t batch, int64_t input, int64_t hidden) {
  const Tensors given{random({batch, input}), random({batch, hidden}), random({batch, hidden}),
                      random({3 * hidden, hidden + input}), random({3 * hidden})};
  compare_all("lltm_cell",
              [](const Tensors& t) { return listed(fourfold::lltm_cell(t[0], t[1], t[2], t[3], t[4])); },
              [](const Tensors& t) { return listed(reference_cell(t[0], t[1], t[2], t[3], t[4])); }, given,
              {random({batch, hidden}), random({batch, hidden})});
}

void run_lltm(const Random& random, int64_t time, int64_t batch, int64_t input, int64_t hidden, bool reverse) {
  const Tensors given{random({time, batch, input}), random({batch, hidden}), random({batch, hidden}),
                      random({3 * hidden, hidden + input}), random({3 * hidden})};
  const auto own = [&](const Tensors& t) {
    Tensor h = t[1], c = t[2];
    Tensors steps(static_cast<size_t>(time));
    for (int64_t k = 0; k < time; ++k) {
      const int64_t step = reverse ? time - 1 - k : k;
      std::tie(h, c) = reference_cell(t[0][step], h, c, t[3], t[4]);
      steps[static_cast<size_t>(step)] = h;
    }
    return Tensors{at::stack(steps), h, c};
  };
  compare_all("lltm", [&](const Tensors& t) { return listed(fourfold::lltm(t[0], t[1], t[2], t[3], t[4], reverse)); },
              own, given, {random({time, batch, hidden}), random({batch, hidden}), random({batch, hidden})});
}

Tensors parameters(const Random& random, int64_t gates, int64_t input, int64_t hidden) {
  return {random({gates * hidden, input}), random({gates * hidden, hidden}), random({gates * hidden}),
          random({gates * hidden})};
}

void run_lstm(const Random& random, int64_t time, int64_t batch, int64_t input, int64_t hidden) {
  Tensors given{random({time, batch, input}), random({batch, hidden}), random({batch, hidden})};
  for (const Tensor& p : parameters(random, 4, input, hidden)) given.push_back(p);
  const auto own = [](const Tensors& t) {
    const auto [output, h, c] = at::lstm(t[0], {t[1].unsqueeze(0), t[2].unsqueeze(0)}, {t[3], t[4], t[5], t[6]}, true, 1,
                                         0.0, true, false, false);
    return Tensors{output, h[0], c[0]};
  };
  compare_all("lstm",
              [](const Tensors& t) { return listed(fourfold::lstm(t[0], t[1], t[2], t[3], t[4], t[5], t[6])); }, own,
              given, {random({time, batch, hidden}), random({batch, hidden}), random({batch, hidden})});
}

void run_gru(const Random& random, int64_t time, int64_t batch, int64_t input, int64_t hidden) {
  Tensors given{random({time, batch, input}), random({batch, hidden})};
  for (const Tensor& p : parameters(random, 3, input, hidden)) given.push_back(p);
  const auto own = [](const Tensors& t) {
    const auto [output, h] =
        at::gru(t[0], t[1].unsqueeze(0), {t[2], t[3], t[4], t[5]}, true, 1, 0.0, true, false, false);
    return Tensors{output, h[0]};
  };
  compare_all("gru", [](const Tensors& t) { return listed(fourfold::gru(t[0], t[1], t[2], t[3], t[4], t[5])); }, own,
              given, {random({time, batch, hidden}), random({batch, hidden})});
}

void run_mlp(const Random& random, int64_t batch, int64_t input, int64_t hidden, int64_t output) {
  const Tensors given{random({batch, input}), random({hidden, input}), random({1, hidden}), random({output, hidden}),
                      random({1, output})};
  const auto own = [](const Tensors& t) {
    return Tensors{at::linear(at::relu(at::linear(t[0], t[1], t[2][0])), t[3], t[4][0])};
  };
  const Tensor grad = random({batch, output});
  compare_all("mlp", [](const Tensors& t) { return Tensors{fourfold::mlp(t[0], t[1], t[2], t[3], t[4])}; }, own, given,
              {grad});
  compare_all("mlp_layers",
              [](const Tensors& t) { return Tensors{fourfold::mlp_layers(t[0], {t[1], t[3]}, {t[2], t[4]})}; }, own, given,
              {grad});
  compare_all("mlp_layers by tanh, without a bias",
              [](const Tensors& t) { return Tensors{fourfold::mlp_layers(t[0], {t[1], t[2]}, {}, "tanh")}; },
              [](const Tensors& t) { return Tensors{at::linear(at::tanh(at::linear(t[0], t[1])), t[2])}; },
              {given[0], given[1], given[3]}, {grad});
}

template <typename F>
void expect_thrown(const std::string& sentence, const F& f) {
  try {
    f();
    fail("nothing is thrown, but expected: " + sentence);
  } catch (const std::exception& error) {
    const std::string said = error.what();
    if (said.find(sentence) == said.npos) fail("expected: " + sentence + "\nbut got: " + said);
  }
}

void run_refusals() {
  const Tensor x = at::ones({2, 3}).requires_grad_();
  expect_thrown("softshrink: expected lambd to be at least 0, but got -1", [&] { fourfold::softshrink(x, -1); });
  // Second derivatives use the definition, which is in Python.
  const Tensor grad = at::ones({2, 3}).requires_grad_();
  const Tensor first =
      torch::autograd::grad({fourfold::softshrink(x)}, {x}, {grad}, std::nullopt, /*create_graph=*/true)[0];
  expect_thrown("softshrink_backward", [&] { first.sum().backward(); });
}

}  // namespace

int main(int argc, char** argv) {
  const char* level = fourfold_cpu_capability();
  if (level == nullptr) {
    std::cout << fourfold_cpu_capability_error() << "\n";
    return 1;
  }
  if (argc < 2 || std::string(level) != argv[1]) {
    std::cout << "fourfold_cpu_capability() is " << level << ", expected " << (argc < 2 ? "an argument" : argv[1])
              << "\n";
    return 1;
  }
  fourfold::enable_gradients();
  fourfold::enable_gradients();  // may be called repeatedly
  at::manual_seed(0);
  at::globalContext().setUserEnabledMkldnn(false);  // its LSTM is wrong by half on an emulated Haswell
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const Random random{dtype};
    only_run = argc > 2 && dtype != at::kFloat;
    run_elementwise(random);
    run_lltm_cell(random, 5, 7, 19);
    run_lltm(random, 6, 5, 7, 19, false);
    run_lltm(random, 4, 1, 3, 33, true);
    run_lstm(random, 6, 5, 7, 19);
    run_lstm(random, 5, 17, 8, 32);  // even sizes: the CPU multiplies bfloat16 directly if it can
    run_gru(random, 6, 5, 7, 19);
    run_gru(random, 5, 17, 8, 32);
    run_mlp(random, 9, 13, 21, 5);     // small: fourfold's loops
    run_mlp(random, 9, 270, 250, 10);  // large: torch's products
  }
  run_promotion();
  run_refusals();
  if (failures != 0) return 1;
  std::cout << "libfourfold, ABI " << fourfold_abi_version() << ", level " << level << ": passed\n";
  return 0;
}
