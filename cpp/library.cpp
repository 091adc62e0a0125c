#include <fourfold/library.h>

#include <string_view>
#include <utility>

#include "cpu/kernels/vector_functions.h"
#include "cpu/level.h"
#include "cpu/recurrent.h"
#include "ops/prepacked.h"

int fourfold_abi_version() { return FOURFOLD_ABI_VERSION; }

const char* fourfold_build_facts() { return FOURFOLD_BUILD_FACTS; }

const char* fourfold_cpu_capability() { return fourfold::cpu::level_choice().name; }

const char* fourfold_cpu_capability_error() { return fourfold::cpu::level_choice().error.c_str(); }

int64_t fourfold_prepacked_bytes(const char* op, const char* dtype, int64_t input_size, int64_t hidden_size) {
  constexpr std::pair<std::string_view, const fourfold::RecurrentKernels*> tables[] = {
      {"gru", &fourfold::gru_on_cpu}, {"lltm", &fourfold::lltm_on_cpu}, {"lstm", &fourfold::lstm_on_cpu}};
  for (const auto& [name, kernels] : tables) {
    for (const auto& one : fourfold::dtypes) {
      const bool is_right = name == op && std::string_view(one.name) == dtype && one.computed >= fourfold::Kind::float32;
      const auto type = static_cast<fourfold::ScalarType>(one.number);
      if (is_right) return fourfold::prepacked_size(*kernels, type, input_size, hidden_size);
    }
  }
  return -1;
}

uintptr_t fourfold_vector_function(const char* operation, const char* type) {
  using namespace fourfold::program;
  for (const Type one : {Type::float32, Type::float64}) {
    for (int k = 0; std::string_view(name_of(one)) == type && k < operations; ++k) {
      if (std::string_view(descriptions[k].name) == operation) {
        return fourfold::cpu::vector_function(static_cast<Operation>(k), one);
      }
    }
  }
  return 0;
}
