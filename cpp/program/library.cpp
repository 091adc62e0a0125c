// Programs as libfourfold offers them (include/fourfold/program.h).
#include <fourfold/program.h>

#include <algorithm>
#include <string>
#include <torch/headeronly/core/ScalarType.h>

#include "cpu/program/emit.h"
#include "cpu/program/run.h"
#include "cpu/program/schedule.h"
#include "program/layout.h"
#include "program/program.h"

struct fourfold_program {
  fourfold::program::Program program;
  fourfold::cpu::Schedule schedule;
  std::string text;
};

namespace {

using fourfold::Kind;
using fourfold::program::Shape;
using fourfold::program::Tensor;
using torch::headeronly::ScalarType;

thread_local std::string reason;
thread_local std::string source;

constexpr std::pair<Kind, ScalarType> dtypes[] = {
    {Kind::boolean, ScalarType::Bool}, {Kind::uint8, ScalarType::Byte},        {Kind::int8, ScalarType::Char},
    {Kind::int16, ScalarType::Short},  {Kind::int32, ScalarType::Int},         {Kind::int64, ScalarType::Long},
    {Kind::float16, ScalarType::Half}, {Kind::bfloat16, ScalarType::BFloat16}, {Kind::float32, ScalarType::Float},
    {Kind::float64, ScalarType::Double}};

int32_t dtype_of(Kind kind) {
  for (const auto& [own, dtype] : dtypes) {
    if (own == kind) return static_cast<int32_t>(dtype);
  }
  return -1;
}

Kind kind_of(int32_t dtype) {
  for (const auto& [kind, torchs] : dtypes) {
    if (static_cast<int32_t>(torchs) == dtype) return kind;
  }
  throw std::invalid_argument("program: expected a dtype that programs know, but got torch's number " + std::to_string(dtype));
}

// False where `allocate` gives up.
bool run(const fourfold_program& made, const fourfold_tensor* given, int32_t count, fourfold_allocate allocate, void* context) {
  std::vector<Tensor> inputs, outputs;
  for (int32_t k = 0; k < count; ++k) {
    inputs.push_back({given[k].data, kind_of(given[k].dtype), given[k].dim, given[k].sizes, given[k].strides});
  }
  const auto sizes = fourfold::program::axis_sizes(made.program, inputs.data(), inputs.size());
  std::vector<Shape> shapes;
  shapes.reserve(made.program.outputs.size());
  void* data = nullptr;
  for (const auto& output : made.program.outputs) {
    const auto dim = static_cast<int32_t>(output.dims.size());
    if (output.part == 0) {
      const Shape& shape = shapes.emplace_back(fourfold::program::shape_of(output, sizes));
      const auto place = static_cast<int32_t>(shapes.size() - 1);
      data = allocate(context, place, dtype_of(output.kind), dim, shape.sizes.data(), shape.strides.data());
      const bool empty = std::find(shape.sizes.begin(), shape.sizes.end(), 0) != shape.sizes.end();
      if (data == nullptr && !empty) return false;
    }
    const Shape& shape = shapes.back();
    const auto bytes = shape.offset(output) * static_cast<int64_t>(fourfold::element_size(output.kind));
    void* part = bytes == 0 ? data : static_cast<char*>(data) + bytes;
    outputs.push_back({part, output.kind, dim, shape.sizes.data(), shape.strides.data()});
  }
  fourfold::cpu::run(made.program, made.schedule, sizes, inputs.data(), outputs.data());
  return true;
}

}  // namespace

fourfold_program* fourfold_program_new(const char* text, int64_t length) try {
  auto program = fourfold::program::parse({text, static_cast<size_t>(length)});
  auto schedule = fourfold::cpu::schedule(program);
  return new fourfold_program{std::move(program), std::move(schedule), std::string(text, static_cast<size_t>(length))};
} catch (const std::exception& error) {
  reason = error.what();
  return nullptr;
}

void fourfold_program_delete(fourfold_program* program) { delete program; }

int32_t fourfold_program_inputs(const fourfold_program* program) {
  return static_cast<int32_t>(program->program.inputs.size());
}

int32_t fourfold_program_outputs(const fourfold_program* program) {
  const auto& outputs = program->program.outputs;
  return static_cast<int32_t>(std::count_if(outputs.begin(), outputs.end(), [](const auto& one) { return one.part == 0; }));
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

const char* fourfold_program_source(const fourfold_program* program, const char* name) try {
  source = fourfold::cpu::emit(program->program, program->schedule, program->text, name);
  return source.c_str();
} catch (const std::exception& error) {
  reason = error.what();
  return nullptr;
}

void fourfold_program_use(fourfold_program* program, const void* stages) {
  auto* const* function = static_cast<fourfold::cpu::StageFunction* const*>(stages);
  for (auto& stage : program->schedule.stages) stage.compiled = *function++;
}

const char* fourfold_program_error() { return reason.c_str(); }
