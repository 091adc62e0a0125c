// Runs every operator of libfourfold, and its backward, through torch's dispatcher, without Python, and compares with
// plain ATen and ATen's own gradients. The argument is the CPU level that must be in use.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/infer_schema.h>
#include <fourfold/library.h>

#include <iostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

namespace {

int failures = 0;

// torch does not compare the signature of a call with the schema of an operator of the stable ABI.
template <typename Signature>
auto fourfold_op(const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("fourfold::" + name).c_str(), "");
  const auto called = c10::inferFunctionSchemaFlattenedReturns<Signature>();
  const auto difference = c10::findSchemaDifferences(called, op.schema());
  if (difference) throw std::runtime_error(name + " is called wrongly here: " + *difference);
  return op.typed<Signature>();
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
  const bool same_kind = got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type();
  const double bound = tolerance(want.scalar_type());
  if (same_kind && at::allclose(got.to(at::kDouble), want.to(at::kDouble), bound, bound, /*equal_nan=*/true)) return;
  ++failures;
  std::cout << what << " of " << want.scalar_type() << ": differs from ATen";
  if (same_kind) std::cout << " by " << (got - want).abs().max().item<double>();
  std::cout << "\n";
}

// The gradients of (output * grad).sum() with respect to the leaves.
std::vector<Tensor> gradients(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grads,
                              const std::vector<Tensor>& leaves) {
  Tensor loss = at::zeros({}, outputs[0].options());
  for (size_t k = 0; k < outputs.size(); ++k) loss = loss + (outputs[k] * grads[k]).sum();
  for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
  loss.backward();
  std::vector<Tensor> result;
  for (const Tensor& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

template <typename... Tensors>
void compare_all(const std::string& what, const std::tuple<Tensors...>& got, const std::vector<Tensor>& want) {
  const std::vector<Tensor> all = std::apply([](const auto&... tensor) { return std::vector<Tensor>{tensor...}; }, got);
  for (size_t k = 0; k < all.size(); ++k) compare(what + ", gradient " + std::to_string(k), all[k], want[k]);
}

struct Random {
  at::ScalarType dtype;

  Tensor operator()(at::IntArrayRef sizes) const { return at::randn(sizes, at::kDouble).mul_(0.5).to(dtype); }
  Tensor leaf(at::IntArrayRef sizes) const { return (*this)(sizes).requires_grad_(); }
};

Two reference_cell(const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const Tensor& bias) {
  const auto gates = at::linear(at::cat({h, x}, 1), weights, bias).chunk(3, 1);
  const Tensor next_c = c + at::sigmoid(gates[0]) * at::elu(gates[2]);
  return {at::sigmoid(gates[1]) * at::tanh(next_c), next_c};
}

void run_elementwise(const Random& random) {
  // 1001: several vectors of every level, and a tail.
  const Tensor x = random.leaf({7, 143}), y = random({143});
  const auto axpby =
      fourfold_op<Tensor(const Tensor&, const Tensor&, double, double, std::optional<at::ScalarType>)>("axpby");
  compare("axpby", axpby.call(x.detach(), y, 2.5, -0.5, std::nullopt), (2.5 * x - 0.5 * y).detach());

  const Tensor grad = random({7, 143});
  const Tensor want = at::softshrink(x, 0.25);
  const auto forward = fourfold_op<Tensor(const Tensor&, double)>("softshrink");
  const auto backward = fourfold_op<Tensor(const Tensor&, const Tensor&, double)>("softshrink_backward");
  compare("softshrink", forward.call(x.detach(), 0.25), want.detach());
  compare("softshrink_backward", backward.call(grad, x.detach(), 0.25), gradients({want}, {grad}, {x})[0]);
}

void run_lltm_cell(const Random& random, int64_t batch, int64_t input, int64_t hidden) {
  const std::vector<Tensor> leaves{random.leaf({batch, input}), random.leaf({batch, hidden}),
                                   random.leaf({batch, hidden}), random.leaf({3 * hidden, hidden + input}),
                                   random.leaf({3 * hidden})};
  const auto [want_h, want_c] = reference_cell(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]);
  const Tensor x = leaves[0].detach(), h = leaves[1].detach(), c = leaves[2].detach(), w = leaves[3].detach(),
               b = leaves[4].detach(), grad_h = random({batch, hidden}), grad_c = random({batch, hidden});

  const auto forward = fourfold_op<Three(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, bool)>("lltm_cell");
  const auto [next_h, next_c, gates] = forward.call(x, h, c, w, b, true);
  compare("lltm_cell, h", next_h, want_h.detach());
  compare("lltm_cell, c", next_c, want_c.detach());
  const auto backward = fourfold_op<Five(
      const MaybeTensor&, const MaybeTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
      const MaybeTensor&, const Tensor&, const Tensor&, bool, bool, bool)>("lltm_cell_backward");
  compare_all("lltm_cell_backward", backward.call(grad_h, grad_c, x, h, c, w, b, next_c, gates, true, true, true),
              gradients({want_h, want_c}, {grad_h, grad_c}, leaves));
}

void run_lltm(const Random& random, int64_t time, int64_t batch, int64_t input, int64_t hidden, bool reverse) {
  const std::vector<Tensor> leaves{random.leaf({time, batch, input}), random.leaf({batch, hidden}),
                                   random.leaf({batch, hidden}), random.leaf({3 * hidden, hidden + input}),
                                   random.leaf({3 * hidden})};
  Tensor want_h = leaves[1], want_c = leaves[2];
  std::vector<Tensor> steps(static_cast<size_t>(time));
  for (int64_t k = 0; k < time; ++k) {
    const int64_t t = reverse ? time - 1 - k : k;
    std::tie(want_h, want_c) = reference_cell(leaves[0][t], want_h, want_c, leaves[3], leaves[4]);
    steps[static_cast<size_t>(t)] = want_h;
  }
  const Tensor want = at::stack(steps);
  const Tensor x = leaves[0].detach(), h = leaves[1].detach(), c = leaves[2].detach(), w = leaves[3].detach(),
               b = leaves[4].detach(), grad = random({time, batch, hidden}), grad_h = random({batch, hidden}),
               grad_c = random({batch, hidden});

  const auto forward = fourfold_op<Five(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, bool, const MaybeTensor&, bool,
      bool, const MaybeTensor&, const MaybeTensor&)>("lltm");
  const auto [output, h_n, c_n, gates, cells] =
      forward.call(x, h, c, w, b, reverse, std::nullopt, true, false, std::nullopt, std::nullopt);
  compare("lltm, output", output, want.detach());
  compare("lltm, h_n", h_n, want_h.detach());
  compare("lltm, c_n", c_n, want_c.detach());
  const auto backward = fourfold_op<Five(
      const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, const Tensor&, const Tensor&, const Tensor&,
      const Tensor&, const MaybeTensor&, bool, const MaybeTensor&, const Tensor&, const Tensor&, const Tensor&, bool,
      bool, bool, const MaybeTensor&, bool)>("lltm_backward");
  compare_all("lltm_backward",
              backward.call(grad, grad_h, grad_c, x, h, c, w, b, reverse, std::nullopt, output, gates, cells, true,
                            true, false, std::nullopt, true),
              gradients({want, want_h, want_c}, {grad, grad_h, grad_c}, leaves));
}

struct GatedLayer {
  std::vector<Tensor> leaves;  // x, the states, weight_ih, weight_hh, bias_ih, bias_hh
  std::vector<Tensor> given;   // the same without gradients
  std::vector<Tensor> grads;   // of the output and of the final states

  GatedLayer(const Random& random, int64_t gates, int64_t states, int64_t time, int64_t batch, int64_t input,
             int64_t hidden) {
    leaves = {random.leaf({time, batch, input})};
    for (int64_t k = 0; k < states; ++k) leaves.push_back(random.leaf({batch, hidden}));
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {gates * hidden, input}, {gates * hidden, hidden}, {gates * hidden}, {gates * hidden}}) {
      leaves.push_back(random.leaf(sizes));
    }
    for (const Tensor& leaf : leaves) given.push_back(leaf.detach());
    grads = {random({time, batch, hidden})};
    for (int64_t k = 0; k < states; ++k) grads.push_back(random({batch, hidden}));
  }

  std::vector<Tensor> parameters() const { return {leaves.end() - 4, leaves.end()}; }
};

void run_lstm(const Random& random, int64_t time, int64_t batch, int64_t input, int64_t hidden) {
  const GatedLayer layer(random, 4, 2, time, batch, input, hidden);
  const std::vector<Tensor>& a = layer.given;
  const auto [want, want_h, want_c] = at::lstm(
      layer.leaves[0], {layer.leaves[1].unsqueeze(0), layer.leaves[2].unsqueeze(0)}, layer.parameters(), true, 1, 0.0,
      true, false, false);
  const auto forward = fourfold_op<Five(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&,
      const MaybeTensor&, bool, const MaybeTensor&, bool, bool, const MaybeTensor&, const MaybeTensor&)>("lstm");
  const auto [output, h_n, c_n, gates, cells] = forward.call(
      a[0], a[1], a[2], a[3], a[4], a[5], a[6], false, std::nullopt, true, false, std::nullopt, std::nullopt);
  compare("lstm, output", output, want.detach());
  compare("lstm, h_n", h_n, want_h[0].detach());
  compare("lstm, c_n", c_n, want_c[0].detach());
  const auto backward = fourfold_op<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
      const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, const Tensor&, const Tensor&, const Tensor&,
      const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, bool, const MaybeTensor&, const Tensor&,
      const Tensor&, const Tensor&, bool, bool, bool, const MaybeTensor&, bool)>("lstm_backward");
  compare_all("lstm_backward",
              backward.call(layer.grads[0], layer.grads[1], layer.grads[2], a[0], a[1], a[2], a[3], a[4], a[5], a[6],
                            false, std::nullopt, output, gates, cells, true, true, false, std::nullopt, true),
              gradients({want, want_h[0], want_c[0]}, layer.grads, layer.leaves));
}

void run_gru(const Random& random, int64_t time, int64_t batch, int64_t input, int64_t hidden) {
  const GatedLayer layer(random, 3, 1, time, batch, input, hidden);
  const std::vector<Tensor>& a = layer.given;
  const auto [want, want_h] =
      at::gru(layer.leaves[0], layer.leaves[1].unsqueeze(0), layer.parameters(), true, 1, 0.0, true, false, false);
  const auto forward = fourfold_op<Three(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, const MaybeTensor&, bool,
      const MaybeTensor&, bool, bool, const MaybeTensor&, const MaybeTensor&)>("gru");
  const auto [output, h_n, gates] = forward.call(
      a[0], a[1], a[2], a[3], a[4], a[5], false, std::nullopt, true, false, std::nullopt, std::nullopt);
  compare("gru, output", output, want.detach());
  compare("gru, h_n", h_n, want_h[0].detach());
  const auto backward = fourfold_op<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
      const MaybeTensor&, const MaybeTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
      const MaybeTensor&, const MaybeTensor&, bool, const MaybeTensor&, const Tensor&, const Tensor&, bool, bool, bool,
      const MaybeTensor&, bool)>("gru_backward");
  compare_all("gru_backward",
              backward.call(layer.grads[0], layer.grads[1], a[0], a[1], a[2], a[3], a[4], a[5], false, std::nullopt,
                            output, gates, true, true, false, std::nullopt, true),
              gradients({want, want_h[0]}, layer.grads, layer.leaves));
}

void run_mlp(const Random& random, int64_t batch, int64_t input, int64_t hidden, int64_t output) {
  const std::vector<Tensor> leaves{random.leaf({batch, input}), random.leaf({hidden, input}), random.leaf({1, hidden}),
                                   random.leaf({output, hidden}), random.leaf({1, output})};
  const Tensor want =
      at::linear(at::relu(at::linear(leaves[0], leaves[1], leaves[2][0])), leaves[3], leaves[4][0]);
  const Tensor x = leaves[0].detach(), w1 = leaves[1].detach(), b1 = leaves[2].detach(), w2 = leaves[3].detach(),
               b2 = leaves[4].detach(), grad = random({batch, output});

  const auto forward = fourfold_op<Two(
      const Tensor&, const Tensor&, const MaybeTensor&, const Tensor&, const MaybeTensor&, bool)>("mlp");
  const auto [got, saved] = forward.call(x, w1, b1, w2, b2, true);
  compare("mlp", got, want.detach());
  const auto backward = fourfold_op<Five(
      const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&, const Tensor&, const MaybeTensor&,
      const Tensor&, bool, bool)>("mlp_backward");
  compare_all("mlp_backward", backward.call(grad, x, w1, b1, w2, b2, saved, true, true),
              gradients({want}, {grad}, leaves));
}

}  // namespace

int main(int argc, char** argv) {
  const char* level = fourfold_cpu_capability();
  if (level == nullptr) {
    std::cout << fourfold_cpu_capability_error() << "\n";
    return 1;
  }
  if (argc != 2 || std::string(level) != argv[1]) {
    std::cout << "fourfold_cpu_capability() is " << level << ", expected " << (argc == 2 ? argv[1] : "an argument")
              << "\n";
    return 1;
  }
  at::manual_seed(0);
  at::globalContext().setUserEnabledMkldnn(false);  // its LSTM is wrong by half on an emulated Haswell
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const Random random{dtype};
    run_elementwise(random);
    run_lltm_cell(random, 5, 7, 19);
    run_lltm(random, 6, 5, 7, 19, false);
    run_lltm(random, 4, 1, 3, 33, true);
    run_lstm(random, 6, 5, 7, 19);
    run_lstm(random, 5, 17, 8, 32);  // even sizes: bfloat16 is multiplied as it is where the CPU can
    run_gru(random, 6, 5, 7, 19);
    run_gru(random, 5, 17, 8, 32);
    run_mlp(random, 9, 13, 21, 5);      // small: our own loops
    run_mlp(random, 9, 270, 250, 10);   // large: torch's products
  }
  if (failures != 0) return 1;
  std::cout << "libfourfold, ABI " << fourfold_abi_version() << ", level " << level << ": passed\n";
  return 0;
}
