// Runs programs by the interpreter and by compiled nests, without torch: `run_nests <calls >results`. A call is a line
// of numbers, the bytes of the program's text, and for each input its dtype, dim, sizes, strides and bytes; then the
// text and the inputs' data. A result has for each output its size in 8 bytes and the data, first the interpreter's.
#include "run_nests.h"

#include <fourfold/program.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/program/product.h"
#include "cpu/team.h"
#include "ops/kind.h"
#include "program/nests.h"

// What torch and the products do in the library. Layouts depend on the number of threads; one does all the work.
namespace fourfold::cpu {

void parallel_for(int64_t begin, int64_t end, int64_t, void (*body)(void*, int64_t, int64_t), void* context) {
  const int64_t middle = begin + (end - begin) / 2;
  if (middle > begin) body(context, begin, middle);
  body(context, middle, end);
}
int64_t torch_threads() { return 2; }
int64_t usable_threads() { return 1; }
int64_t wake_up_microseconds() { return 0; }
std::unique_ptr<const program::Product> product_with(const program::Tensor*, int, int64_t) { return nullptr; }

}  // namespace fourfold::cpu

namespace {

void fail(const std::string& why) {
  std::cerr << "run_nests: " << why << '\n';
  std::exit(1);
}

void answer(void*, const char* text, const char* layout, const char*) {
  for (int k = 0; k < compiled_nests_count; ++k) {
    const CompiledNest& nest = compiled_nests[k];
    if (std::strcmp(nest.text, text) != 0 || std::strcmp(nest.layout, layout) != 0) continue;
    return fourfold_nests_attach(
        text, layout, nest.functions, nest.count, nest.bytes[0], nest.bytes[1], nest.bytes[2], nest.sums);
  }
  fail("no nest was compiled for " + std::string(layout) + " of\n" + text);
}

[[noreturn]] void serve() {
  while (true) fourfold_nests_next(1000, nullptr, answer);
}

using Buffers = std::vector<std::vector<char>>;

void* allocate(void* outputs, int32_t, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
  int64_t elements = 1;
  for (int k = 0; k < dim; ++k) elements = sizes[k] == 0 ? 0 : elements + (sizes[k] - 1) * strides[k];
  for (const fourfold::Dtype& one : fourfold::dtypes) {
    if (one.number == dtype) return static_cast<Buffers*>(outputs)->emplace_back(elements * one.bytes + 64).data();
  }
  return nullptr;
}

std::string taken(std::istream& from, size_t bytes) {
  std::string data(bytes, '\0');
  if (!from.read(data.data(), static_cast<std::streamsize>(bytes))) fail("the input ends within a call");
  return data;
}

void run_call(const std::string& line) {
  std::istringstream facts(line);
  const auto number = [&] {
    int64_t value = 0;
    if (!(facts >> value)) fail("a call lacks numbers");
    return value;
  };
  const auto text_bytes = static_cast<size_t>(number());
  struct Input {
    std::vector<int64_t> sizes, strides;
    int32_t dtype;
    size_t bytes;
    std::string data;
  };
  std::vector<Input> inputs(static_cast<size_t>(number()));
  for (Input& input : inputs) {
    input.dtype = static_cast<int32_t>(number());
    input.sizes.resize(static_cast<size_t>(number()));
    input.strides.resize(input.sizes.size());
    for (int64_t& size : input.sizes) size = number();
    for (int64_t& stride : input.strides) stride = number();
    input.bytes = static_cast<size_t>(number());
  }
  const std::string text = taken(std::cin, text_bytes);
  std::vector<fourfold_tensor> tensors;
  for (Input& input : inputs) {
    input.data = taken(std::cin, input.bytes);
    const auto dim = static_cast<int32_t>(input.sizes.size());
    tensors.push_back({input.data.data(), input.dtype, dim, input.sizes.data(), input.strides.data(), nullptr});
  }
  fourfold_program* const program = fourfold_program_new(text.data(), static_cast<int64_t>(text.size()), 0, 0);
  if (program == nullptr) fail(fourfold_program_error());
  for (const int generator : {0, 2}) {
    fourfold_program_generate(program, generator);
    Buffers outputs;
    outputs.reserve(static_cast<size_t>(fourfold_program_outputs(program)));
    const auto count = static_cast<int32_t>(tensors.size());
    if (fourfold_program_run(program, tensors.data(), count, nullptr, allocate, &outputs) != 0) fail(fourfold_program_error());
    for (const auto& output : outputs) {
      const int64_t bytes = static_cast<int64_t>(output.size()) - 64;
      std::cout.write(reinterpret_cast<const char*>(&bytes), sizeof bytes).write(output.data(), bytes);
    }
  }
}

}  // namespace

int main() {
  fourfold_nests_serve(1);
  std::thread(serve).detach();
  std::string line;
  while (std::getline(std::cin, line)) run_call(line);
  std::cout.flush();
  std::_Exit(std::cout ? 0 : 1);  // the thread still waits
}
