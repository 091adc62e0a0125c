// Loop nests: a program compiled at run time, by fourfold.compiler.nest, for the layouts of its calls. A backend asks for the
// nest of a layout; until it is there, the backend runs the program in its own way. Layouts are texts that the backend and the
// compiler agree on.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fourfold::program {

// Which nests a program asks for: none; those of layouts that come again, while it runs on; or those of all, waiting for them.
enum class Generator : int32_t { interpreter, automatic, llvm };

using NestFunction = void(int64_t begin, int64_t end, const int64_t* arguments, char* scratch);

struct Nest {
  std::vector<NestFunction*> functions;  // null where there is nothing to do
  int64_t bytes_of_column = 0;           // of scratch memory
  int64_t bytes_of_block = 0;
  int64_t bytes_of_panel = 0;            // for each of its elements
  int32_t sums = 0;                      // how many reductions have partial results
};

class Nests {
 public:
  explicit Nests(std::string text) : text_(std::move(text)) {}

  // What is known of a layout's nest. It stays as long as the nests do.
  struct Answer {
    bool is_final = false;
    const Nest* nest = nullptr;
  };
  Answer find(const std::string& layout, Generator generator);
  // Null: it can't be compiled.
  void attach(std::string_view layout, std::unique_ptr<const Nest> nest);

 private:
  struct Known {
    std::string layout;
    int calls = 0;
    bool is_requested = false;
    bool is_answered = false;
    std::unique_ptr<const Nest> nest;
  };

  std::string text_;
  std::vector<std::unique_ptr<Known>> known_;
};

// Those of one text, which programs share.
std::shared_ptr<Nests> nests_of(std::string_view text);

}  // namespace fourfold::program

// For the compiler.
extern "C" {

// What nests call: to[r * to_step + c] = from[c * from_step + r], of elements that have `size` bytes.
FOURFOLD_EXPORT void fourfold_transpose_tile(
    int64_t size, const void* from, int64_t from_step, void* to, int64_t to_step, int64_t rows, int64_t columns);

// The layout of a call with tensors of these sizes and strides: what its nest is compiled for. Returns 1 if they don't fit the
// program, with the reason in fourfold_program_error().
FOURFOLD_EXPORT int32_t fourfold_program_layout(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, void* context,
    void (*take)(void* context, const char* layout));

// From now on `served` says whether somebody takes requests. Without, nothing is requested.
FOURFOLD_EXPORT void fourfold_nests_serve(int32_t served);
// Takes the next request, waiting for at most so many milliseconds. Returns 0 if there is none.
FOURFOLD_EXPORT int32_t fourfold_nests_next(
    int64_t milliseconds, void* context, void (*take)(void* context, const char* text, const char* layout));
// What has become of it. count 0: it can't be compiled. The functions' code has to stay as long as the process.
FOURFOLD_EXPORT void fourfold_nests_attach(
    const char* text, const char* layout, void* const* functions, int32_t count, int64_t bytes_of_column,
    int64_t bytes_of_block, int64_t bytes_of_panel, int32_t sums);
}
