// One program with several commands; tests/test_consumer.py checks its output. It is one file because torch's headers
// take longer to compile than everything else.

// The code of docs/cpp.md comes first: it has to include what it needs.
#define main page
#include PAGE
#undef main

#include "files.h"
#include "layers.h"

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <dlfcn.h>

#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

using torch::Tensor;
namespace ours = fourfold::nn;

namespace {

// The same model as in the Python test.
struct SmallImpl : torch::nn::Module {
  SmallImpl() : lltm(5, 8), linear(8, 3) {
    register_module("lltm", lltm);
    register_module("linear", linear);
  }
  Tensor forward(const Tensor& x) { return linear(std::get<0>(lltm(x))); }

  ours::LLTM lltm;
  torch::nn::Linear linear;
};
TORCH_MODULE(Small);

using Arguments = std::vector<std::string>;

// state_dict, input, results
void infer(const Arguments& paths) {
  Small model;
  ours::load_state_dict(model, paths[0]);
  model->eval();
  const torch::NoGradGuard no_grad;
  write(model(read(paths[1]).toTensor()), paths[2]);
}

// state_dict, {x, y}, optimizer, results
void train(const Arguments& paths) {
  Small model;
  ours::load_state_dict(model, paths[0]);
  const auto data = read(paths[1]).toGenericDict();
  const Tensor x = data.at("x").toTensor(), y = data.at("y").toTensor();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (paths[2] == "sgd") {
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.5));
  } else {
    optimizer = std::make_unique<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(1e-2));
  }
  std::vector<Tensor> losses;
  for (int step = 0; step < 20; ++step) {
    optimizer->zero_grad();
    const Tensor loss = torch::mse_loss(model(x), y);
    loss.backward();
    optimizer->step();
    losses.push_back(loss.detach());
  }
  write(torch::stack(losses), paths[3]);
}

// AOTInductor's package, input, results
void run_package(const Arguments& paths) {
  torch::inductor::AOTIModelPackageLoader model(paths[0]);
  write(model.run({read(paths[1]).toTensor()})[0], paths[2]);
}

void print_refusal(const std::function<void()>& call) {
  try {
    call();
    std::cout << "accepted\n";
  } catch (const std::runtime_error& error) {
    std::cout << error.what() << "\n";
  }
}

// A checkpoint for each error of load_state_dict. Each error is one line.
void refuse(const Arguments& paths) {
  Small model;
  const Tensor before = model->linear->weight.detach().clone();
  for (const std::string& path : paths) print_refusal([&] { ours::load_state_dict(model, path); });
  if (!torch::equal(before, model->linear->weight)) std::cout << "something was copied\n";

  const Tensor x = torch::zeros({6, 2, 5}), mask = torch::zeros({6, 2}, torch::kBool);
  ours::LSTM lstm(5, 8);
  print_refusal([] { ours::LSTM(ours::LSTMOptions(5, 8).proj_size(4)); });
  print_refusal([] { ours::LLTM(5, 0); });
  print_refusal([] { ours::GRU(ours::GRUOptions(5, 8).num_layers(2).dropout(2)); });
  print_refusal([] { ours::MLP(ours::MLPOptions({5, 8, 3}).activation("relu6")); });
  print_refusal([] { ours::MLP(std::vector<int64_t>{5}); });
  print_refusal([&] { lstm(x.narrow(2, 0, 4)); });
  print_refusal([&] { lstm(x[0][0]); });
  print_refusal([&] { lstm(x.narrow(0, 0, 0)); });
  print_refusal([&] { lstm(x, std::tuple(torch::zeros({1, 2, 8}), torch::zeros({1, 3, 8}))); });
  print_refusal([&] { lstm(x[0], std::tuple(torch::zeros({8}), torch::zeros({1, 8}))); });
  print_refusal([&] { lstm(x, std::nullopt, mask.to(torch::kFloat)); });
  print_refusal([&] { lstm(x, std::nullopt, mask.t()); });
  using torch::nn::utils::rnn::pack_padded_sequence;
  const auto packed = pack_padded_sequence(x, torch::tensor({6, 4}));
  print_refusal([&] {
    lstm->forward_with_packed_input(packed, std::nullopt, pack_padded_sequence(mask, torch::tensor({5, 5})));
  });
  print_refusal([&] { ours::GRUCell(5, 8)(x[0], torch::zeros({3, 8})); });
  print_refusal([&] { ours::LLTMCell(5, 8)(x); });
}

// A backward without enable_gradients(), which no other command calls in this process. Each line is an error.
void forget_gradients(const Arguments&) {
  const auto leaf = [](at::IntArrayRef shape) { return torch::ones(shape).requires_grad_(); };
  const Tensor x = leaf({2, 3}), h = torch::zeros({2, 4}), w = torch::ones({2, 3}), sequence = leaf({5, 2, 3});
  namespace op = fourfold;
  const auto none = std::nullopt;
  const std::function<Tensor()> calls[] = {
      [&] { return op::softshrink(x); },
      [&] { return op::axpby(w, x) * 2; },
      [&] { return op::mlp(x, torch::ones({4, 3}), none, torch::ones({2, 4}), none); },
      [&] { return op::mlp_layers(w, {leaf({4, 3}), torch::ones({2, 4})}); },
      [&] { return std::get<1>(op::lltm_cell(x, h, h, torch::ones({12, 7}))); },
      [&] { return std::get<0>(std::get<1>(op::lltm(sequence, h, h, torch::ones({12, 7})))); },
      [&] { return std::get<0>(op::lstm(sequence, h, h, torch::ones({16, 3}), torch::ones({16, 4}))); },
      [&] { return std::get<1>(op::gru(sequence, h, torch::ones({12, 3}), leaf({12, 4}))); },
  };
  for (const auto& call : calls) {
    print_refusal([&] { call().sum().backward(); });
    const torch::NoGradGuard no_grad;
    if (call().requires_grad()) std::cout << "recorded without need\n";
  }
  std::cout << x.grad().defined() << "\n";
  op::softshrink(w);
  op::enable_gradients();
  op::softshrink(x).sum().backward();
  std::cout << x.grad().sum().item<float>() << "\n";
}

// Loads another copy of libfourfold while the program runs.
void load_copy(const Arguments& paths) {
  const Tensor x = torch::full({3}, 2.0);
  std::cout << fourfold::softshrink(x)[0].item<float>() << "\n";
  if (dlopen(paths[0].c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(dlerror());
  fourfold::enable_gradients();
  std::cout << fourfold::axpby(x, x)[0].item<float>() << "\n";
}

// The printed modules of a model, and a Sequential that calls one with the input only.
void print_modules(const Arguments&) {
  std::cout << ours::LSTM(ours::LSTMOptions(3, 4).num_layers(2).dropout(0.5).bidirectional(true)) << "\n"
            << ours::LLTMCell(ours::LLTMCellOptions(3, 4).bias(false)) << "\n"
            << ours::MLP(5, 15, 1) << "\n"
            << ours::MLP(ours::MLPOptions({3, 4, 2}).activation("tanh")) << "\n";
  torch::nn::Sequential sequential(ours::MLP(std::vector<int64_t>{3, 4, 5}), ours::LLTM(5, 6));
  const auto result = sequential->forward<std::tuple<Tensor, std::tuple<Tensor, Tensor>>>(torch::zeros({7, 2, 3}));
  std::cout << std::get<0>(result).sizes() << "\n";
}

// Every folder from which a torch library was loaded.
void print_torches() {
  std::set<std::string> folders;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t name = line.rfind('/');
    if (name != std::string::npos && (line.find("/libtorch", name) == name || line.find("/libc10", name) == name)) {
      folders.insert(line.substr(line.find('/'), name - line.find('/')));
    }
  }
  for (const std::string& folder : folders) std::cout << "torch: " << folder << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const Arguments&)> commands = {
      {"infer", infer},   {"train", train}, {"package", run_package},
      {"refuse", refuse}, {"print", print_modules}, {"forget", forget_gradients},
      {"load_copy", load_copy}, {"layers", [](const Arguments& a) { layers::run_layers(a[0], a[1]); }},
      {"page", [](const Arguments&) { page(); }},
  };
  commands.at(argv[1])({argv + 2, argv + argc});
  print_torches();
}
