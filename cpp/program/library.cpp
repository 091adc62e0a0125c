// The C interface to programs (include/fourfold/program.h).
#include <fourfold/program.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/grid_call.h"
#include "program/layout.h"
#include "program/library.h"
#include "program/nests.h"
#include "program/program.h"

namespace fourfold::program {
namespace {

// A call's arguments.
struct Given {
  const fourfold_tensor* inputs;
  int32_t count;
  const fourfold_tensor* outputs;  // null, or one for each
};

// A call prepared for tensors of certain dtypes, sizes and strides.
struct Layout {
  std::vector<int64_t> key;
  std::vector<Shape> shapes;   // of each whole output
  std::vector<bool> is_given;  // for each whole output, whether it is written into a given tensor
  std::unique_ptr<const PreparedCall> call;

  void add(const fourfold_tensor& given) {
    key.push_back(given.dtype);
    key.push_back(given.dim);
    key.insert(key.end(), given.sizes, given.sizes + given.dim);
    key.insert(key.end(), given.strides, given.strides + given.dim);
  }
  void add_none() { key.push_back(none); }

  bool fits(const Given& given) const {
    auto at = key.begin();
    const auto is_next = [&](const fourfold_tensor& tensor) {
      if (key.end() - at < 2 + 2 * tensor.dim || at[0] != tensor.dtype || at[1] != tensor.dim) return false;
      at += 2;
      if (!std::equal(tensor.sizes, tensor.sizes + tensor.dim, at)) return false;
      at += tensor.dim;
      if (!std::equal(tensor.strides, tensor.strides + tensor.dim, at)) return false;
      at += tensor.dim;
      return true;
    };
    if (!std::all_of(given.inputs, given.inputs + given.count, is_next)) return false;
    for (size_t k = 0; given.outputs != nullptr && k < shapes.size(); ++k) {
      const bool is_none = given.outputs[k].data == nullptr;
      if (is_none ? at == key.end() || *at++ != none : !is_next(given.outputs[k])) return false;
    }
    return at == key.end();
  }

 private:
  static constexpr int64_t none = -1;  // not a dtype
};

}  // namespace
}  // namespace fourfold::program

struct fourfold_program {
  using Layout = fourfold::program::Layout;

  fourfold::program::Program program;
  std::unique_ptr<fourfold::program::Executable> executable;
  std::vector<bool> overwritable;  // fourfold::program::find_overwritable()
  // A cache of the first layouts, filled from the front; calls with other layouts are prepared each time.
  mutable std::array<std::atomic<const Layout*>, 8> layouts{};

  ~fourfold_program() {
    for (const auto& layout : layouts) delete layout.load();
  }
};

namespace fourfold::program {
namespace {

thread_local std::string reason;

// By the number of the device type in torch. A function-local static, because backends register during static
// initialisation.
std::map<int32_t, const Backend*>& backends() {
  static std::map<int32_t, const Backend*> registered;
  return registered;
}

int32_t dtype_of(Kind kind) { return fourfold::describe(kind).number; }

// An output as a part of the whole tensor's memory.
Tensor tensor_of(const Output& output, const Shape& shape, void* data, void* base) {
  const auto bytes = shape.offset(output) * element_size(output.kind);
  void* const part = data == nullptr || bytes == 0 ? data : static_cast<char*>(data) + bytes;
  return {part, output.kind, static_cast<int>(output.dims.size()), shape.sizes.data(), shape.strides.data(), base};
}

bool fits(const fourfold_tensor& tensor, const Output& output, const Shape& shape) {
  const auto dim = static_cast<int32_t>(shape.sizes.size());
  return output.level != Level::column && tensor.dtype == dtype_of(output.kind) && tensor.dim == dim &&
         std::equal(tensor.sizes, tensor.sizes + dim, shape.sizes.begin());
}

std::unique_ptr<const Layout> layout_of(const fourfold_program& made, const Given& given) {
  auto layout = std::make_unique<Layout>();
  std::vector<Tensor> inputs, outputs;
  for (int32_t k = 0; k < given.count; ++k) {
    const fourfold_tensor& input = given.inputs[k];
    layout->add(input);
    inputs.push_back({nullptr, kind_of(input.dtype), input.dim, input.sizes, input.strides, nullptr});
  }
  const auto sizes = axis_sizes(made.program, inputs.data(), inputs.size());
  for (const auto& output : made.program.outputs) {
    if (output.part > 0) continue;
    Shape shape = shape_of(output, sizes);
    const fourfold_tensor* const target = given.outputs == nullptr ? nullptr : given.outputs + layout->shapes.size();
    if (target != nullptr) target->data == nullptr ? layout->add_none() : layout->add(*target);
    layout->is_given.push_back(target != nullptr && target->data != nullptr && fits(*target, output, shape));
    if (layout->is_given.back()) shape.strides.assign(target->strides, target->strides + target->dim);
    layout->shapes.push_back(std::move(shape));
  }
  size_t shape = 0;
  for (const auto& output : made.program.outputs) {
    outputs.push_back(tensor_of(output, layout->shapes[shape], nullptr, nullptr));
    shape += output.part + 1 == output.parts;
  }
  layout->call = made.executable->prepare(sizes, inputs.data(), outputs.data());
  return layout;
}

// A call's tensors, inputs first; empty if `allocate` returns null.
std::vector<Tensor> tensors_of(
    const fourfold_program& made, const Layout& layout, const Given& given, fourfold_allocate allocate, void* context) {
  std::vector<Tensor> tensors;
  tensors.reserve(static_cast<size_t>(given.count) + made.program.outputs.size());
  for (int32_t k = 0; k < given.count; ++k) {
    const fourfold_tensor& input = given.inputs[k];
    const Input& described = made.program.inputs[k];
    tensors.push_back(read_tensor(described, {input.data, described.kind, input.dim, input.sizes, input.strides, input.base}));
  }
  size_t index = 0;
  void *data = nullptr, *base = nullptr;
  for (const auto& output : made.program.outputs) {
    const Shape& shape = layout.shapes[index];
    if (output.part == 0 && layout.is_given[index]) {
      data = given.outputs[index].data;
      base = given.outputs[index].base;
    } else if (output.part == 0) {
      const auto dim = static_cast<int32_t>(output.dims.size());
      base = data = allocate(context, static_cast<int32_t>(index), dtype_of(output.kind), dim, shape.sizes.data(), shape.strides.data());
      const bool empty = std::find(shape.sizes.begin(), shape.sizes.end(), 0) != shape.sizes.end();
      if (data == nullptr && !empty) return {};
    }
    tensors.push_back(tensor_of(output, shape, data, base));
    index += output.part + 1 == output.parts;
  }
  return tensors;
}

// False if `allocate` returns null.
bool run(const fourfold_program& made, const Layout& layout, const Given& given, fourfold_allocate allocate, void* context) {
  const std::vector<Tensor> tensors = tensors_of(made, layout, given, allocate, context);
  if (tensors.empty()) return false;
  layout.call->run(tensors.data(), tensors.data() + given.count);
  return true;
}

bool run(const fourfold_program& made, const Given& given, fourfold_allocate allocate, void* context) {
  for (const auto& known : made.layouts) {
    const Layout* const layout = known.load(std::memory_order_acquire);
    if (layout == nullptr) break;
    if (layout->fits(given)) return run(made, *layout, given, allocate, context);
  }
  std::unique_ptr<const Layout> layout = layout_of(made, given);
  const Layout& present = *layout;
  for (auto& known : made.layouts) {
    const Layout* none = nullptr;
    if (!known.compare_exchange_strong(none, layout.get(), std::memory_order_release)) continue;
    layout.release();
    break;
  }
  return run(made, present, given, allocate, context);
}

// The tensors of a loop's first step.
struct FirstStep {
  std::vector<int64_t> sizes;  // of the axes
  std::vector<Tensor> inputs, outputs;
};

// Returns 2 with the reason if no nest supports these tensors.
int32_t refused(const std::string& obstacle) {
  reason = obstacle;
  return 2;
}

// obstacle: why no nest supports these tensors; empty if one may.
FirstStep first_step_of(const fourfold_program& made, const Given& given, const fourfold_steps& steps, std::string& obstacle) {
  FirstStep step;
  for (int32_t k = 0; k < given.count; ++k) {
    const fourfold_tensor& input = given.inputs[k];
    // An element of a state is kept where the next step computes the same element.
    if (steps.feeds[k] >= 0 && made.program.inputs[k].is_part()) obstacle = "its step reads a part of a state";
    step.inputs.push_back({input.data, kind_of(input.dtype), input.dim, input.sizes, input.strides, input.base});
  }
  step.sizes = axis_sizes(made.program, step.inputs.data(), step.inputs.size());
  for (size_t k = 0; k < step.inputs.size(); ++k) step.inputs[k] = read_tensor(made.program.inputs[k], step.inputs[k]);
  for (size_t k = 0; k < made.program.outputs.size(); ++k) {
    const Output& output = made.program.outputs[k];
    const fourfold_tensor& tensor = given.outputs[k];
    if (output.join >= 0) obstacle = "a result of its program is a concatenation";
    if (output.level == Level::column) obstacle = "its program sums over rows";
    if (obstacle.empty() && !fits(tensor, output, shape_of(output, step.sizes))) obstacle = "a result has another size";
    if (!obstacle.empty()) return step;
    step.outputs.push_back({tensor.data, output.kind, tensor.dim, tensor.sizes, tensor.strides, tensor.base});
  }
  return step;
}

class PreparedLayout final : public Prepared {
 public:
  PreparedLayout(const fourfold_program& made, std::unique_ptr<const Layout> layout) : made_(made), layout_(std::move(layout)) {}

  void run(const fourfold_tensor* inputs, const fourfold_tensor* outputs) const override {
    const auto tensors = tensors_of(made_, *layout_, {inputs, count(), outputs}, nullptr, nullptr);
    layout_->call->run(tensors.data(), tensors.data() + count());
  }
  int64_t parts() const override { return layout_->call->parts(); }
  void run_part(const fourfold_tensor* inputs, const fourfold_tensor* outputs, int64_t part, int64_t parts) const override {
    const auto tensors = tensors_of(made_, *layout_, {inputs, count(), outputs}, nullptr, nullptr);
    layout_->call->run_part(tensors.data(), tensors.data() + count(), part, parts);
  }

 private:
  int32_t count() const { return static_cast<int32_t>(made_.program.inputs.size()); }

  const fourfold_program& made_;
  const std::unique_ptr<const Layout> layout_;
};

}  // namespace

std::unique_ptr<const Prepared> prepare(
    const fourfold_program& program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    std::string& obstacle) {
  auto layout = layout_of(program, {inputs, count, outputs});
  const bool are_given = std::all_of(layout->is_given.begin(), layout->is_given.end(), [](bool is) { return is; });
  if (are_given) return std::make_unique<PreparedLayout>(program, std::move(layout));
  const auto& all = program.program.outputs;
  const bool sums = std::any_of(all.begin(), all.end(), [](const Output& output) { return output.level == Level::column; });
  obstacle = sums ? "sums over rows" : "has a result of another size";
  return nullptr;
}

const Backend& backend_of(int32_t device_type) {
  const auto found = backends().find(device_type);
  if (found != backends().end()) return *found->second;
  throw std::invalid_argument("program: no backend runs programs on torch's device type " + std::to_string(device_type));
}

Kind kind_of(int32_t dtype) {
  const auto* const found = std::find_if(std::begin(dtypes), std::end(dtypes), [&](const Dtype& one) { return one.number == dtype; });
  if (found != std::end(dtypes)) return static_cast<Kind>(found - std::begin(dtypes));
  throw std::invalid_argument("program: expected a dtype that programs support, but got torch's number " + std::to_string(dtype));
}

void set_error(const char* message) { reason = message; }

BackendRegistration::BackendRegistration(int32_t device_type, const Backend& backend) { backends()[device_type] = &backend; }

}  // namespace fourfold::program

using namespace fourfold::program;

fourfold_program* fourfold_program_new(const char* text, int64_t length, int32_t device_type, int32_t device_index) try {
  auto made = std::make_unique<fourfold_program>();
  made->program = parse({text, static_cast<size_t>(length)});
  made->overwritable = find_overwritable(made->program);
  const Backend& backend = backend_of(device_type);
  const std::string_view source(text, static_cast<size_t>(length));
  made->executable = backend.grid == nullptr ? backend.compile(made->program, source)
                                             : compile_grid(*backend.grid, device_index, made->program, source);
  return made.release();
} catch (const std::exception& error) {
  reason = error.what();
  return nullptr;
}

void fourfold_program_delete(fourfold_program* program) { delete program; }

void fourfold_program_generate(fourfold_program* program, int32_t generator) {
  program->executable->use(static_cast<Generator>(generator));
}

int32_t fourfold_program_inputs(const fourfold_program* program) {
  return static_cast<int32_t>(program->program.inputs.size());
}

int32_t fourfold_program_outputs(const fourfold_program* program) {
  const auto& outputs = program->program.outputs;
  return static_cast<int32_t>(std::count_if(outputs.begin(), outputs.end(), [](const Output& output) { return output.part == 0; }));
}

int32_t fourfold_program_number(const fourfold_program* program, int32_t input) {
  const auto& described = program->program.inputs[static_cast<size_t>(input)];
  return described.is_number ? dtype_of(described.kind) : -1;
}

int32_t fourfold_program_overwrites(const fourfold_program* program, int32_t output, int32_t input) {
  const size_t inputs = program->program.inputs.size();
  return program->overwritable[static_cast<size_t>(output) * inputs + static_cast<size_t>(input)] ? 1 : 0;
}

int32_t fourfold_program_run(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    fourfold_allocate allocate, void* context) try {
  return run(*program, {inputs, count, outputs}, allocate, context) ? 0 : 2;
} catch (const std::exception& error) {
  reason = error.what();
  return 1;
}

int32_t fourfold_program_run_steps(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    const fourfold_steps* steps) try {
  std::string obstacle;
  const FirstStep first = first_step_of(*program, {inputs, count, outputs}, *steps, obstacle);
  if (obstacle.empty()) {
    obstacle = program->executable->run_steps(first.sizes, first.inputs.data(), first.outputs.data(), *steps);
  }
  return obstacle.empty() ? 0 : refused(obstacle);
} catch (const std::exception& error) {
  reason = error.what();
  return 1;
}

int32_t fourfold_program_layout(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, void* context,
    void (*take)(void* context, const char* layout)) try {
  take(context, layout_of(*program, {inputs, count, nullptr})->call->layout().c_str());
  return 0;
} catch (const std::exception& error) {
  reason = error.what();
  return 1;
}

int32_t fourfold_program_layout_of_steps(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    const fourfold_steps* steps, void* context, void (*take)(void* context, const char* layout)) try {
  std::string obstacle;
  const FirstStep first = first_step_of(*program, {inputs, count, outputs}, *steps, obstacle);
  if (!obstacle.empty()) return refused(obstacle);
  const std::string layout =
      program->executable->layout_of_steps(first.sizes, first.inputs.data(), first.outputs.data(), *steps);
  if (layout.empty()) return refused(no_elements);
  take(context, layout.c_str());
  return 0;
} catch (const std::exception& error) {
  reason = error.what();
  return 1;
}

int32_t fourfold_program_backends(int32_t* device_types, int32_t most) {
  int32_t count = 0;
  for (const auto& [type, backend] : backends()) {
    if (count < most) device_types[count] = type;
    ++count;
  }
  return count;
}

const char* fourfold_program_error() { return reason.c_str(); }
