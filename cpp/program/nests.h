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

// A function of code that is loaded into a device.
struct NestKernel {
  std::string name;
  int threads = 0;  // of a block
  int64_t shared_bytes = 0;
};

struct Nest {
  std::vector<NestFunction*> functions;  // null where there is nothing to do
  int64_t bytes_of_column = 0;           // of scratch memory
  int64_t bytes_of_block = 0;
  int64_t bytes_of_panel = 0;            // for each of its elements
  int32_t sums = 0;                      // how many reductions have partial results
  // Of a grid instead, in the order in which they are launched.
  std::vector<NestKernel> kernels;
  std::string code;
};

class Nests {
 public:
  Nests(std::string text, std::string target) : text_(std::move(text)), target_(std::move(target)) {}

  // What is known of a layout's nest. It stays as long as the nests do.
  struct Answer {
    bool is_final = false;
    const Nest* nest = nullptr;
    std::string reason;  // why there is none, if it is final
  };
  Answer find(const std::string& layout, Generator generator);
  // Null: it can't be compiled, for that reason.
  void attach(std::string_view layout, std::unique_ptr<const Nest> nest, std::string_view reason);

 private:
  struct Known {
    std::string layout;
    int calls = 0;
    bool is_requested = false;
    bool is_answered = false;
    std::unique_ptr<const Nest> nest;
    std::string reason;
  };

  std::string text_;
  std::string target_;
  std::vector<std::unique_ptr<Known>> known_;
};

// Those of one text, which programs share. target: what code is compiled for, as the compiler names it, such as "cuda sm_90"; empty
// for this processor.
std::shared_ptr<Nests> nests_of(std::string_view text, std::string_view target = {});

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
// Likewise of a loop's steps, see fourfold_program_run_steps(); empty if no nest runs them.
FOURFOLD_EXPORT int32_t fourfold_program_layout_of_steps(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    const fourfold_steps* steps, void* context, void (*take)(void* context, const char* layout));

// From now on `served` says whether somebody takes requests. Without, nothing is requested.
FOURFOLD_EXPORT void fourfold_nests_serve(int32_t served);
// Takes the next request, waiting for at most so many milliseconds. Returns 0 if there is none.
FOURFOLD_EXPORT int32_t fourfold_nests_next(
    int64_t milliseconds, void* context, void (*take)(void* context, const char* text, const char* layout, const char* target));
// What has become of it: code of this processor. The functions' code has to stay as long as the process.
FOURFOLD_EXPORT void fourfold_nests_attach(
    const char* text, const char* layout, void* const* functions, int32_t count, int64_t bytes_of_column,
    int64_t bytes_of_block, int64_t bytes_of_panel, int32_t sums);
// Or of another target, which is copied.
FOURFOLD_EXPORT void fourfold_nests_attach_code(
    const char* text, const char* layout, const char* target, const void* code, int64_t bytes, const char* const* kernels,
    const int64_t* threads, const int64_t* shared_bytes, int32_t count);
// Or it can't be compiled.
FOURFOLD_EXPORT void fourfold_nests_refuse(const char* text, const char* layout, const char* target, const char* reason);
}
