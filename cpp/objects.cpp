// Provides nests that were compiled ahead of time to the programs of the CPU level in use.
#include <fourfold/library.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "cpu/level.h"
#include "program/nests.h"

namespace fourfold::cpu {
namespace {

// The level whose nests run, by the names of fourfold.compiler.nest.ir.levels; empty without vectors.
std::string_view level_of_nests() {
  if (level_choice().name == nullptr) return {};
  if (level_choice().index > 0) return level_choice().index == 1 ? "avx2" : "avx512";
  return fourfold_vector_function("exp", "float32") == 0 ? "" : "neon";
}

std::string_view version() {
  const std::string_view facts = fourfold_build_facts(), key = "version=";
  const size_t begin = facts.find(key) + key.size();
  return facts.substr(begin, facts.find('\n', begin) - begin);
}

void report(const fourfold_object& object) {
  std::fprintf(stderr,
               "fourfold: expected the loop nests in this program to be compiled by fourfold %s with ABI version %d, but got %s with "
               "%d; programs run without them, slower: run python -m fourfold objects of this version, and link again\n",
               std::string(version()).c_str(), FOURFOLD_ABI_VERSION, object.version, static_cast<int>(object.abi_version));
}

}  // namespace
}  // namespace fourfold::cpu

void fourfold_nests_provide(const fourfold_object* object) {
  using namespace fourfold::cpu;
  if (object->version != version() || object->abi_version != FOURFOLD_ABI_VERSION) return report(*object);
  if (object->level != level_of_nests()) return;
  for (const auto* one = object->functions; one != object->functions + object->function_count; ++one) {
    *one->address = fourfold_vector_function(one->operation, one->type);
  }
  for (const auto* one = object->nests; one != object->nests + object->nest_count; ++one) {
    auto nest = std::make_unique<fourfold::program::Nest>();
    for (int64_t k = 0; k < one->count; ++k) {
      nest->functions.push_back(reinterpret_cast<fourfold::program::NestFunction*>(one->functions[k]));
    }
    nest->bytes = one->bytes;
    nest->bytes_of_column = one->bytes_of_column;
    nest->bytes_of_panel = one->bytes_of_panel;
    nest->sums = static_cast<int32_t>(one->sums);
    fourfold::program::provide(one->text, one->layout, std::move(nest));
  }
}
