// A network of Linear layers with an activation between them, in one call: (..., input_size) to (..., output_size).
//
// MLP(std::vector<int64_t>{64, 128, 10}) has the children "0", "1", "2" of a Sequential of Linear, ReLU and Linear, and
// therefore the same state_dict and initialisation. MLP(64, 128, 10) has one hidden layer and the parameters of AMD's
// C++ extension tutorial: hidden_weights (hidden_size, input_size), hidden_bias (1, hidden_size),
// output_weights (output_size, hidden_size), output_bias (1, output_size).
#pragma once

#include <fourfold/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <initializer_list>

namespace fourfold::nn {

struct MLPOptions {
  MLPOptions(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  MLPOptions(std::initializer_list<int64_t> sizes) : sizes_(sizes) {}
  MLPOptions(int64_t input_size, int64_t hidden_size, int64_t output_size)
      : sizes_({input_size, hidden_size, output_size}), tutorial_(true) {}

  // The sizes of the input, each hidden layer and the output: at least two.
  TORCH_ARG(std::vector<int64_t>, sizes);
  TORCH_ARG(bool, bias) = true;
  // relu, tanh, gelu (exact, by erf) or silu.
  TORCH_ARG(std::string, activation) = "relu";
  // Whether to use the tutorial's parameters, which need exactly three sizes.
  TORCH_ARG(bool, tutorial) = false;
};

class MLPImpl : public torch::nn::Cloneable<MLPImpl> {
 public:
  explicit MLPImpl(const MLPOptions& given) : options(given) {
    enable_gradients();
    MLPImpl::reset();
  }
  explicit MLPImpl(std::vector<int64_t> sizes) : MLPImpl(MLPOptions(std::move(sizes))) {}
  MLPImpl(int64_t input_size, int64_t hidden_size, int64_t output_size)
      : MLPImpl(MLPOptions(input_size, hidden_size, output_size)) {}

  void reset() override {
    check_options();
    linears_.clear();
    if (options.tutorial()) {
      register_tutorial();
    } else {
      register_layers();
    }
  }

  // torch::nn::Linear's initialisation; with the tutorial's parameters, uniform within ±1/√hidden_size.
  void reset_parameters() {
    if (options.tutorial()) detail::reset_uniform(*this, options.sizes()[1]);
    for (torch::nn::Linear& linear : linears_) linear->reset_parameters();
  }

  Tensor forward(const Tensor& x) {
    detail::expect_features("MLP", x, options.sizes()[0]);
    if (options.tutorial()) return fourfold::mlp_layers(x, weights_, biases_, options.activation());
    detail::Tensors weights;
    std::vector<OptionalTensor> biases;
    for (const torch::nn::Linear& linear : linears_) {  // not cached: cloning the module replaces the parameters
      weights.push_back(linear->weight);
      biases.push_back(detail::optional(linear->bias));
    }
    return fourfold::mlp_layers(x, weights, biases, options.activation());
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "fourfold::nn::MLP";
    if (!options.tutorial()) return;  // torch prints the children
    const auto& sizes = options.sizes();
    stream << std::boolalpha << "(" << sizes[0] << ", " << sizes[1] << ", " << sizes[2] << ", bias=" << options.bias()
           << ", activation=" << options.activation() << ")";
  }

  MLPOptions options;

 private:
  void check_options() const {
    const auto& sizes = options.sizes();
    if (sizes.size() < 2) {
      detail::refuse("MLP: expected sizes to have those of the input and the output, but got ", at::IntArrayRef(sizes));
    }
    for (size_t k = 0; k < sizes.size(); ++k) {
      detail::expect_size("MLP", ("sizes[" + std::to_string(k) + "]").c_str(), sizes[k]);
    }
    if (options.tutorial() && sizes.size() != 3) {
      detail::refuse("MLP: expected the tutorial's form to have 3 sizes, but got ", at::IntArrayRef(sizes));
    }
    activation_module();
  }

  std::shared_ptr<torch::nn::Module> activation_module() const {
    const std::string& name = options.activation();
    if (name == "relu") return torch::nn::ReLU().ptr();
    if (name == "tanh") return torch::nn::Tanh().ptr();
    if (name == "gelu") return torch::nn::GELU().ptr();
    if (name == "silu") return torch::nn::SiLU().ptr();
    detail::refuse("MLP: expected activation to be relu, tanh, gelu or silu, but got ", name);
  }

  void register_layers() {
    const auto& sizes = options.sizes();
    for (size_t k = 0; k + 1 < sizes.size(); ++k) {
      if (k > 0) register_module(std::to_string(2 * k - 1), activation_module());
      const auto layer = torch::nn::LinearOptions(sizes[k], sizes[k + 1]).bias(options.bias());
      linears_.push_back(register_module(std::to_string(2 * k), torch::nn::Linear(layer)));
    }
  }

  void register_tutorial() {
    const int64_t inputs = options.sizes()[0], hidden = options.sizes()[1], outputs = options.sizes()[2];
    weights_ = {register_parameter("hidden_weights", torch::empty({hidden, inputs})),
                register_parameter("output_weights", torch::empty({outputs, hidden}))};
    biases_.assign(2, std::nullopt);
    if (options.bias()) {
      biases_ = {register_parameter("hidden_bias", torch::empty({1, hidden})),
                 register_parameter("output_bias", torch::empty({1, outputs}))};
    }
    reset_parameters();
  }

  std::vector<torch::nn::Linear> linears_;
  detail::Tensors weights_;  // the tutorial's
  std::vector<OptionalTensor> biases_;
};

TORCH_MODULE(MLP);

}  // namespace fourfold::nn
