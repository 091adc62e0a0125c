// _C: the library's functions for Python besides its operators. Their interface contains no torch types.
#include <fourfold/library.h>
#include <fourfold/program.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "model/json.h"
#include "model/permitted.h"
#include "program/grid.h"
#include "program/nests.h"
#include "program/operations.h"
#include "system/system.h"
#include "system/text.h"

namespace {

std::map<std::string, std::string> build_facts() {
  std::map<std::string, std::string> facts;
  for (const std::string_view line : fourfold::system::split(fourfold_build_facts(), '\n')) {
    const auto equals = line.find('=');
    facts[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return facts;
}

pybind11::dict build_info() {
  pybind11::dict info;
  for (const auto& [key, value] : build_facts()) {
    if (key == "CUDA" || key == "HIP" || key == "METAL") continue;
    const bool is_list = key == "operators" || key == "cpu_levels" || key == "cuda_architectures" ||
                         key == "hip_architectures";
    info[pybind11::str(key)] = is_list ? pybind11::cast(fourfold::system::split(value, ',')) : pybind11::cast(value);
  }
  info["abi_version"] = fourfold_abi_version();
  return info;
}

// name -> (built, the configuration's reason)
std::map<std::string, std::pair<bool, std::string>> backends() {
  std::map<std::string, std::pair<bool, std::string>> result{{"cpu", {true, "always built"}}};
  const auto facts = build_facts();
  for (const auto& [key, name] : {std::pair{"CUDA", "cuda"}, {"HIP", "hip"}, {"METAL", "metal"}}) {
    const std::string& value = facts.at(key);
    result[name] = {value.rfind("TRUE", 0) == 0, value.substr(value.find(": ") + 2)};
  }
  return result;
}

std::vector<std::tuple<std::string, std::string, std::string, int32_t, int64_t>> dtypes() {
  std::vector<std::tuple<std::string, std::string, std::string, int32_t, int64_t>> result;
  for (const auto& one : fourfold::dtypes) {
    result.emplace_back(one.torch, one.name, fourfold::describe(one.computed).name, one.number, one.bytes);
  }
  return result;
}

std::vector<std::tuple<std::string, int, std::string, int>> operations() {
  std::vector<std::tuple<std::string, int, std::string, int>> result;
  for (const auto& one : fourfold::program::descriptions) {
    result.emplace_back(one.name, one.operands, fourfold::program::rule_names[static_cast<int>(one.rule)], one.cost);
  }
  return result;
}

template <size_t count>
std::vector<std::string> names(const char* const (&found)[count]) {
  return {std::begin(found), std::end(found)};
}

std::map<std::string, int64_t> nest_limits() {
  using namespace fourfold::program;
  return {{"reduction_block", reduction_block}, {"slack", nest_slack}, {"rows_together", rows_together}, {"rows_of_sum", rows_of_sum}};
}

std::map<std::string, int64_t> grid_limits() {
  using namespace fourfold::program::grid;
  return {{"threads", threads}, {"threads_of_rows", threads_of_rows}, {"neighbours", neighbours},
          {"parts_of_rows", parts_of_rows}, {"bytes_of_part", bytes_of_part}};
}

std::map<std::string, uintptr_t> vector_functions() {
  std::map<std::string, uintptr_t> addresses;
  for (const auto& operation : fourfold::program::descriptions) {
    for (const char* type : {"float32", "float64"}) {
      const uintptr_t address = fourfold_vector_function(operation.name, type);
      if (address != 0) addresses["fourfold_" + std::string(operation.name) + "_" + type] = address;
    }
  }
  return addresses;
}

using OwnedProgram = std::unique_ptr<fourfold_program, decltype(&fourfold_program_delete)>;

OwnedProgram program_of(const std::string& text, int32_t device_type, int32_t device_index) {
  OwnedProgram program(fourfold_program_new(text.data(), static_cast<int64_t>(text.size()), device_type, device_index),
                       fourfold_program_delete);
  if (program == nullptr) throw std::invalid_argument(fourfold_program_error());
  return program;
}

// Each tensor's (dtype, sizes, strides, offset in bytes from an aligned address); scalars have no sizes.
using Described = std::vector<std::tuple<int32_t, std::vector<int64_t>, std::vector<int64_t>, uintptr_t>>;

std::vector<fourfold_tensor> tensors_of(const Described& described) {
  std::vector<fourfold_tensor> tensors;
  for (const auto& [dtype, sizes, strides, offset] : described) {
    tensors.push_back({reinterpret_cast<void*>(offset), dtype, static_cast<int32_t>(sizes.size()), sizes.data(),
                       strides.data(), nullptr});
  }
  return tensors;
}

void take_text(void* context, const char* text) { *static_cast<std::string*>(context) = text; }

std::string program_layout(
    const std::string& text, int32_t device_type, int32_t device_index, const Described& inputs) {
  const OwnedProgram program = program_of(text, device_type, device_index);
  const auto tensors = tensors_of(inputs);
  std::string layout;
  const auto count = static_cast<int32_t>(tensors.size());
  if (fourfold_program_layout(program.get(), tensors.data(), count, &layout, &take_text) == 0) return layout;
  throw std::invalid_argument(fourfold_program_error());
}

std::vector<int32_t> program_backends() {
  std::vector<int32_t> types(static_cast<size_t>(fourfold_program_backends(nullptr, 0)));
  fourfold_program_backends(types.data(), static_cast<int32_t>(types.size()));
  return types;
}

std::vector<int32_t> program_numbers(const std::string& text, int32_t device_type, int32_t device_index) {
  const OwnedProgram program = program_of(text, device_type, device_index);
  std::vector<int32_t> numbers;
  for (int32_t k = 0; k < fourfold_program_inputs(program.get()); ++k) {
    numbers.push_back(fourfold_program_number(program.get(), k));
  }
  return numbers;
}

using NestRequest = std::tuple<std::string, std::string, std::string>;

// (text, layout, target), or nothing if no request arrives in that time.
std::optional<NestRequest> next_nest(int64_t milliseconds) {
  NestRequest request;
  const auto take = [](void* context, const char* text, const char* layout, const char* target) {
    *static_cast<NestRequest*>(context) = {text, layout, target};
  };
  const pybind11::gil_scoped_release released;
  if (fourfold_nests_next(milliseconds, &request, take) == 0) return std::nullopt;
  return request;
}

int32_t wait_for_nests(int64_t milliseconds) {
  const pybind11::gil_scoped_release released;
  return fourfold_nests_wait(milliseconds);
}

void attach_nest(const std::string& text, const std::string& layout, const std::vector<uintptr_t>& functions,
                 int64_t bytes, int64_t bytes_of_column, int64_t bytes_of_panel, int32_t sums) {
  std::vector<void*> addresses;
  for (const uintptr_t function : functions) addresses.push_back(reinterpret_cast<void*>(function));
  fourfold_nests_attach(text.c_str(), layout.c_str(), addresses.data(), static_cast<int32_t>(addresses.size()),
                        bytes, bytes_of_column, bytes_of_panel, sums);
}

void attach_code(
    const std::string& text, const std::string& layout, const std::string& target, const pybind11::bytes& code,
    const std::vector<std::tuple<std::string, int64_t, int64_t>>& kernels) {
  std::vector<const char*> names;
  std::vector<int64_t> threads, shared_bytes;
  for (const auto& [name, own_threads, own_bytes] : kernels) {
    names.push_back(name.c_str());
    threads.push_back(own_threads);
    shared_bytes.push_back(own_bytes);
  }
  const std::string_view bytes = code;
  fourfold_nests_attach_code(
      text.c_str(), layout.c_str(), target.c_str(), bytes.data(), static_cast<int64_t>(bytes.size()), names.data(),
      threads.data(), shared_bytes.data(), static_cast<int32_t>(names.size()));
}

std::string cpu_capability() {
  if (const char* name = fourfold_cpu_capability()) return name;
  throw std::runtime_error(fourfold_cpu_capability_error());
}

int64_t prepacked_bytes(const std::string& op, const std::string& dtype, int64_t input_size, int64_t hidden_size) {
  const int64_t bytes = fourfold_prepacked_bytes(op.c_str(), dtype.c_str(), input_size, hidden_size);
  if (bytes < 0) throw std::invalid_argument("fourfold packs no weights of " + dtype + " for " + op);
  return bytes;
}

void check_json(std::string_view text) {
  try {
    fourfold::model::Json::parse(text);
  } catch (const fourfold::model::Refused& error) {
    throw std::invalid_argument(error.what());
  }
}

std::string file_of(const void* symbol) {
  const std::string path = fourfold::system::file_of(symbol).path;
  return path.empty() ? "a file without a name" : path;
}

// The dynamic loader may bind this module to another libfourfold that the process has already loaded.
void expect_own_library() {
  if (const char* error = fourfold_other_copy_error()) throw pybind11::import_error(error);
  const std::string version = build_facts()["version"];
  if (version == FOURFOLD_VERSION && fourfold_abi_version() == FOURFOLD_ABI_VERSION) return;
  const std::string own = file_of(reinterpret_cast<const void*>(&expect_own_library));
  const std::string loaded = file_of(reinterpret_cast<const void*>(&fourfold_abi_version));
  throw pybind11::import_error(
      "fourfold: expected libfourfold " FOURFOLD_VERSION " for " + own + ", but this process has loaded " + loaded +
      " of version " + version +
      "; link the program with the libfourfold of the Python package (python -m fourfold --cmake-dir)");
}

}  // namespace

// All functions are thread-safe in a Python without a GIL.
PYBIND11_MODULE(_C, m, pybind11::mod_gil_not_used()) {
  expect_own_library();
  m.doc() = "fourfold's compiled library: how it was built, its backends, the CPU level in use.";
  m.def("build_info", &build_info, "How libfourfold was built: versions, compiler, operators, CPU levels.");
  m.def("backends", &backends, "Each backend's name with (built, reason).");
  m.def("prepacked_bytes", &prepacked_bytes,
        "prepacked_bytes(op, dtype, input_size, hidden_size): the size in bytes of the result of <op>_prepack.");
  m.def("cpu_capability", &cpu_capability,
        "The CPU level whose kernels run: default, avx2, avx512, avx512_bf16 or amx.");
  m.def("dtypes", &dtypes,
        "Each dtype of programs: (torch's name, name in programs, computed type, ScalarType, bytes).");
  m.def("operations", &operations, "Each operation of programs: (name, number of operands, rule, cost).");
  m.def("generators", [] { return names(fourfold::program::generators); }, "What runs programs, by number.");
  m.def("nest_arguments", [] { return names(fourfold::program::nest_arguments); }, "The first arguments of a nest's functions.");
  m.def("grid_arguments", [] { return names(fourfold::program::grid::arguments); }, "The first arguments of a grid's kernels.");
  m.def("nest_limits", &nest_limits, "Numbers that the library and the nests it calls agree on.");
  m.def("grid_limits", &grid_limits, "Likewise for the kernels of grids of threads.");
  m.def("vector_functions", &vector_functions,
        "Addresses of the elementary functions on vectors of the CPU level in use: fourfold_exp_float32 and so on.");
  m.def("program_backends", &program_backends, "The numbers of the device types that programs run on.");
  m.def("program_numbers", &program_numbers,
        "program_numbers(text, device_type, device_index): for each input its ScalarType if it is a number, -1 if it "
        "is a tensor.");
  m.def("program_layout", &program_layout,
        "program_layout(text, device_type, device_index, [(ScalarType, sizes, strides, offset)]): the layout of such a "
        "call, for which its loop nest is compiled.");
  m.def("check_json", &check_json, "Raises ValueError for text that is not strict JSON, as in model files.");
  m.def("is_permitted", &fourfold::model::is_permitted,
        "Whether a model file may call the operator of torch with this name, without namespace and overload.");
  m.def("may_write", &fourfold::model::may_write, "Whether a model file's operator may change its first argument in place.");
  m.def("transpose_tile", [] { return reinterpret_cast<uintptr_t>(&fourfold_transpose_tile); },
        "The address of the function that nests call to transpose.");
  m.def("serve_nests", [](bool served) { fourfold_nests_serve(served); }, "Whether this process compiles loop nests.");
  m.def("next_nest", &next_nest,
        "next_nest(milliseconds): the (text, layout, target) of the next nest to compile, or None.");
  m.def("wait_for_nests", &wait_for_nests,
        "wait_for_nests(milliseconds): 1 once all requests are answered, 0 if time is up, -1 if nothing serves them.");
  m.def("attach_nest", &attach_nest,
        "attach_nest(text, layout, addresses, bytes, bytes_of_column, bytes_of_panel, sums): answers a "
        "request with code for this CPU.");
  m.def("attach_code", &attach_code,
        "attach_code(text, layout, target, code, [(kernel, threads, shared bytes)]): answers a request with code for "
        "a device.");
  m.def("refuse_nest", &fourfold_nests_refuse,
        "refuse_nest(text, layout, target, reason): answers that the nest can't be compiled.");
}
