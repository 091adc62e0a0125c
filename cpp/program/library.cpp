// Programs as libfourfold offers them (include/fourfold/program.h).
#include <fourfold/program.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "program/backend.h"
#include "program/layout.h"
#include "program/program.h"

struct fourfold_program {
  fourfold::program::Program program;
  std::unique_ptr<fourfold::program::Executable> executable;
};

namespace fourfold::program {
namespace {

thread_local std::string reason;

// By the device's number in torch. A function's, because backends register while the library's globals are initialised.
std::map<int32_t, const Backend*>& backends() {
  static std::map<int32_t, const Backend*> registered;
  return registered;
}

const Backend& backend_of(int32_t device_type) {
  const auto found = backends().find(device_type);
  if (found != backends().end()) return *found->second;
  throw std::invalid_argument("program: no backend runs programs on torch's device type " + std::to_string(device_type));
}

int32_t dtype_of(Kind kind) { return fourfold::describe(kind).number; }

Kind kind_of(int32_t dtype) {
  const auto* const found = std::find_if(std::begin(dtypes), std::end(dtypes), [&](const Dtype& one) { return one.number == dtype; });
  if (found != std::end(dtypes)) return static_cast<Kind>(found - std::begin(dtypes));
  throw std::invalid_argument("program: expected a dtype that programs support, but got torch's number " + std::to_string(dtype));
}

// False where `allocate` gives up.
bool run(const fourfold_program& made, const fourfold_tensor* given, int32_t count, fourfold_allocate allocate, void* context) {
  std::vector<Tensor> inputs, outputs;
  for (int32_t k = 0; k < count; ++k) {
    inputs.push_back({given[k].data, kind_of(given[k].dtype), given[k].dim, given[k].sizes, given[k].strides});
  }
  const auto sizes = axis_sizes(made.program, inputs.data(), inputs.size());
  std::vector<Shape> shapes;
  shapes.reserve(made.program.outputs.size());
  void* data = nullptr;
  for (const auto& output : made.program.outputs) {
    const auto dim = static_cast<int32_t>(output.dims.size());
    if (output.part == 0) {
      const Shape& shape = shapes.emplace_back(shape_of(output, sizes));
      const auto index = static_cast<int32_t>(shapes.size() - 1);
      data = allocate(context, index, dtype_of(output.kind), dim, shape.sizes.data(), shape.strides.data());
      const bool empty = std::find(shape.sizes.begin(), shape.sizes.end(), 0) != shape.sizes.end();
      if (data == nullptr && !empty) return false;
    }
    const Shape& shape = shapes.back();
    const auto bytes = shape.offset(output) * element_size(output.kind);
    void* part = bytes == 0 ? data : static_cast<char*>(data) + bytes;
    outputs.push_back({part, output.kind, dim, shape.sizes.data(), shape.strides.data()});
  }
  made.executable->run(sizes, inputs.data(), outputs.data());
  return true;
}

}  // namespace

BackendRegistration::BackendRegistration(int32_t device_type, const Backend& backend) { backends()[device_type] = &backend; }

}  // namespace fourfold::program

using namespace fourfold::program;

fourfold_program* fourfold_program_new(const char* text, int64_t length, int32_t device_type) try {
  auto made = std::make_unique<fourfold_program>();
  made->program = parse({text, static_cast<size_t>(length)});
  made->executable = backend_of(device_type).compile(made->program, {text, static_cast<size_t>(length)});
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

int32_t fourfold_program_number(const fourfold_program* program, int32_t input) {
  const auto& described = program->program.inputs[static_cast<size_t>(input)];
  return described.is_number ? dtype_of(described.kind) : -1;
}

int32_t fourfold_program_run(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, fourfold_allocate allocate,
    void* context) try {
  return run(*program, inputs, count, allocate, context) ? 0 : 2;
} catch (const std::exception& error) {
  reason = error.what();
  return 1;
}

const char* fourfold_program_error() { return reason.c_str(); }
