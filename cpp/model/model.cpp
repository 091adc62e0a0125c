#include <fourfold/library.h>
#include <fourfold/model.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "../graph/memory.h"
#include "implementation.h"
#include "json.h"
#include "tensor_file.h"

namespace fourfold {

namespace {

using model::Json;
using model::Refused;
using model::shown;
using model::ValueKind;

constexpr int64_t newest = 1;  // the newest supported version of files

// A tensor's dimensions, from the outermost in memory to the innermost.
std::vector<int64_t> order_of(const Json& given, int64_t dimensions) {
  std::vector<int64_t> order;
  std::vector<bool> is_there(static_cast<size_t>(dimensions));
  for (const Json& dimension : given.as_list("an order")) {
    const size_t found = dimension.as_index("a dimension", is_there.size());
    if (is_there[found]) throw Refused("expected an order to have each dimension once");
    is_there[found] = true;
    order.push_back(static_cast<int64_t>(found));
  }
  if (order.size() != is_there.size()) throw Refused("expected an order to have each dimension once");
  return order;
}

void expect_version(const model::TensorFile& file) {
  const auto version = file.metadata.find("fourfold.version");
  if (version == file.metadata.end()) {
    throw Refused("it is a safetensors file that fourfold.save didn't write: it holds tensors and no graph");
  }
  const Json number = Json::parse(version->second);
  const int64_t given = number.as_integer("fourfold.version");
  if (given > newest) {
    throw Refused("it has version " + std::to_string(given) + ", and this fourfold reads files up to version " +
                  std::to_string(newest) + ": upgrade fourfold");
  }
  if (given < 1) throw Refused("expected fourfold.version to be at least 1, but got " + std::to_string(given));
}

const std::string& metadata_of(const model::TensorFile& file, const char* key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) throw Refused(std::string("expected its metadata to have ") + key + ", but they have none");
  return found->second;
}

// cuda as the current GPU, cuda:0: a tensor's device on a GPU has an index, and programs compare devices.
at::Device with_index(at::Device device) { return at::empty({0}, device).device(); }

class Loader {
 public:
  Loader(model::TensorFile file, const LoadOptions& options)
      : file_(std::move(file)),
        surroundings_{with_index(options.device.value_or(at::kCPU)), {"aten", "prims", "fourfold"}},
        reader_(file_.tensors, surroundings_, options.generator),
        made_(std::make_shared<Model::Implementation>()) {
    surroundings_.namespaces.insert(options.allow.begin(), options.allow.end());
  }

  std::shared_ptr<const Model::Implementation> load() {
    expect_version(file_);
    made_->graph_text = metadata_of(file_, "fourfold.graph");
    made_->structure = metadata_of(file_, "fourfold.structure");
    Json::parse(made_->structure);
    const Json graph = Json::parse(made_->graph_text);
    for (auto& [name, tensor] : file_.tensors) tensor = tensor.to(surroundings_.device);
    read_tensors(graph.at("tensors", "the graph"));
    const Json& arguments = graph.at("arguments", "the graph");
    made_->signature.emplace(graph.at("symbols", "the graph"), arguments, surroundings_.device);
    for (const model::Argument& argument : made_->signature->arguments()) kinds_.push_back(argument.kind);
    reader_.read_programs(graph.at("programs", "the graph"));
    graph::Values constants;
    for (const auto& [name, tensor] : made_->tensors) constants.emplace_back(tensor);
    const auto read = reader_.graph_of(graph.at("graph", "the graph"), kinds_, std::move(constants));
    read_orders(arguments, *read);
    read_results(graph.at("results", "the graph"), *read);
    if (const Json* state = graph.find("state")) read_state(*state);
    made_->weights = reader_.take_weights();
    for (const auto& [name, tensor] : made_->tensors) read->constants.push_back(!reader_.is_shared(tensor));
    read->are_unchanged = made_->are_own;
    made_->graph = read;
    return made_;
  }

 private:
  void read_tensors(const Json& given) {
    std::set<std::string> known;
    for (const Json& described : given.as_list("tensors")) {
      const std::string& name = described.at("name", "a tensor").as_string("a name");
      const std::string& data = described.at("data", "a tensor").as_string("a tensor's data");
      const auto found = file_.tensors.find(data);
      if (found == file_.tensors.end()) {
        throw Refused("expected a tensor " + shown(data) + " for " + shown(name) + ", and there is none");
      }
      if (!known.insert(name).second) throw Refused("expected one tensor " + shown(name));
      if (const Json* order = described.find("order")) {
        found->second = model::InputLayout{0, order_of(*order, found->second.dim())}.of(found->second);
      }
      made_->tensors.emplace_back(name, found->second);
      kinds_.push_back(ValueKind::tensor);
    }
  }

  // Reads the memory layouts of arguments on which torch's operators depend.
  void read_orders(const Json& arguments, graph::CompiledGraph& graph) const {
    size_t index = made_->tensors.size();
    for (const Json& argument : arguments.as_list("arguments")) {
      if (const Json* order = argument.find("order")) {
        const auto& shape = argument.at("shape", "an argument").as_list("a shape");
        graph.layouts.push_back({index, order_of(*order, static_cast<int64_t>(shape.size()))});
      }
      ++index;
    }
  }

  void read_results(const Json& given, const graph::CompiledGraph& graph) const {
    for (const Json& result : given.as_list("results")) {
      if (const Json* output = result.find("output")) {
        made_->results.emplace_back(static_cast<int64_t>(output->as_index("a result", graph.outputs.size())), c10::IValue());
      } else {
        made_->results.emplace_back(-1, model::constant_of(result.at("constant", "a result")));
      }
    }
  }

  // [[argument, result or null]]: tensors, each once.
  void read_state(const Json& given) const {
    const auto& arguments = made_->signature->arguments();
    for (const Json& pair : given.as_list("state")) {
      const auto& parts = pair.as_list("a state");
      if (parts.size() != 2) throw Refused("expected a state to be an argument and a result");
      const size_t argument = parts[0].as_index("an argument", arguments.size());
      const bool is_changed = parts[1].is(Json::Kind::null);
      const int64_t result = is_changed ? -1 : static_cast<int64_t>(parts[1].as_index("a result", made_->results.size()));
      const bool is_tensor = is_changed || made_->results[static_cast<size_t>(result)].first >= 0;
      if (made_->is_state(argument) || !is_tensor || !arguments[argument].tensor.has_value()) {
        throw Refused("expected each state to be one tensor");
      }
      made_->state.emplace_back(argument, result);
    }
  }

  model::TensorFile file_;
  model::Surroundings surroundings_;
  model::Reader reader_;
  std::shared_ptr<Model::Implementation> made_;
  std::vector<ValueKind> kinds_;  // of the graph's inputs
};

}  // namespace

std::vector<c10::IValue> Model::operator()(std::vector<c10::IValue> arguments) const {
  const Implementation& own = *implementation_;
  own.signature->check(arguments);
  graph::Values values;
  values.reserve(own.tensors.size() + arguments.size());
  for (const auto& [name, tensor] : own.tensors) values.emplace_back(tensor);
  for (c10::IValue& argument : arguments) values.push_back(std::move(argument));
  const at::NoGradGuard no_grad;
  // Autograd records views and in-place changes, because callers may train with the results.
  const graph::Values outputs = own.graph->run(std::move(values), /*records=*/true);
  std::vector<c10::IValue> results;
  results.reserve(own.results.size());
  for (const auto& [output, constant] : own.results) {
    results.push_back(output < 0 ? constant : outputs[static_cast<size_t>(output)]);
  }
  return results;
}

std::vector<std::string> Model::arguments() const {
  std::vector<std::string> names;
  for (const model::Argument& argument : implementation_->signature->arguments()) names.push_back(argument.name);
  return names;
}

size_t Model::results() const { return implementation_->results.size(); }

std::vector<std::string> Model::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : implementation_->tensors) names.push_back(name);
  return names;
}

std::vector<std::pair<std::string, at::Tensor>> Model::tensors() const {
  *implementation_->are_own = false;
  for (const auto& [name, tensor] : implementation_->tensors) model::hand_out(implementation_->weights, tensor);
  return implementation_->tensors;
}

at::Tensor Model::tensor(const std::string& name) const {
  for (const auto& [own, tensor] : implementation_->tensors) {
    if (own != name) continue;
    *implementation_->are_own = false;
    model::hand_out(implementation_->weights, tensor);
    return tensor;
  }
  throw std::out_of_range("model: expected the name of a tensor of the model, but got " + shown(name));
}

const std::vector<std::pair<size_t, int64_t>>& Model::state() const { return implementation_->state; }

const std::string& Model::graph() const { return implementation_->graph_text; }

const std::string& Model::structure() const { return implementation_->structure; }

void keep_memory(size_t bytes) { graph::keep_at_most(bytes); }

size_t release_memory() { return graph::release_kept_memory(); }

Model load(const std::string& path, const LoadOptions& options) {
  if (fourfold_abi_version() != FOURFOLD_ABI_VERSION) {
    throw LoadError("load: expected libfourfold of the version that fourfold/model.h is from; build the program again");
  }
  try {
    return Model(Loader(model::TensorFile(path), options).load());
  } catch (const Refused& error) {
    throw LoadError("load: expected " + path + " to be a model that fourfold.save wrote, but " + error.what());
  } catch (const c10::Error& error) {
    throw LoadError("load: expected to load " + path + ", but torch says: " + error.what_without_backtrace());
  }
}

}  // namespace fourfold
