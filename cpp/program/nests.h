// Loop nests: programs compiled at run time by fourfold.compiler.nest, once for each layout. A backend requests the
// nest of a layout; until it is compiled, the backend runs the program by its interpreter. A layout is a text that the
// backend writes and the compiler parses.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fourfold::program {

// Which loop nests a program uses: none; those of large or repeated layouts, compiled in the background; or those of
// all layouts, waiting until they are compiled.
enum class Generator : int32_t { interpreter, automatic, llvm };
inline constexpr const char* generators[] = {"interpreter", "auto", "llvm"};  // their names for users

using NestFunction = void(int64_t begin, int64_t end, const int64_t* arguments, char* scratch);

// The arguments on a CPU: these, the tensors' addresses, inputs first, the axes' sizes, and each axis' strides by tensor.
// For a loop over steps also the number of steps, and each tensor's stride from step to step.
#define FOURFOLD_NEST_ARGUMENTS(_) \
  _(columns) _(row) _(partials) _(blocks) _(kept) _(chunk) _(chunks) _(panel_rows) _(panel_columns)

namespace argument {
enum Index : size_t {
#define FOURFOLD_NAME(name) name,
  FOURFOLD_NEST_ARGUMENTS(FOURFOLD_NAME)
#undef FOURFOLD_NAME
  first_tensor
};
}  // namespace argument

inline constexpr const char* nest_arguments[] = {
#define FOURFOLD_NAME(name) #name,
    FOURFOLD_NEST_ARGUMENTS(FOURFOLD_NAME)
#undef FOURFOLD_NAME
};

inline constexpr int64_t nest_slack = 64;      // elements after scratch memory that whole vectors may access
inline constexpr int64_t rows_together = 64;   // the most rows side by side that a nest computes together
inline constexpr int64_t rows_of_sum = 16;     // whose columns are added in float32; column sums add these in float64

// A kernel in code that is loaded into a device.
struct NestKernel {
  std::string name;
  int threads = 0;  // in a block
  int64_t shared_bytes = 0;
};

struct Nest {
  std::vector<NestFunction*> functions;  // null entries have nothing to do
  int64_t bytes = 0;                     // scratch memory, and for each column
  int64_t bytes_of_column = 0;
  int64_t bytes_of_panel = 0;            // for each element of a panel
  int32_t sums = 0;                      // the number of reductions with partial results
  // On GPUs instead of functions: kernels in launch order, and their code.
  std::vector<NestKernel> kernels;
  std::string code;
};

class Nests {
 public:
  Nests(std::string text, std::string target) : text_(std::move(text)), target_(std::move(target)) {}

  // The state of a layout's nest. `nest` is never freed.
  struct Answer {
    bool is_final = false;
    const Nest* nest = nullptr;
    std::string reason;  // why there is no nest, if the answer is final
  };
  // work: of this call, in additions.
  Answer find(const std::string& layout, Generator generator, int64_t work = 0);
  // A null nest means that it can't be compiled, for that reason.
  void attach(std::string_view layout, std::unique_ptr<const Nest> nest, std::string_view reason);
  // Adds the nest of a layout that no call has asked for.
  void add(std::string_view layout, std::unique_ptr<const Nest> nest);
  // Counts the layouts that calls have had.
  void count(int64_t& compiled, int64_t& interpreted) const;

  const std::string& text() const { return text_; }
  const std::string& target() const { return target_; }

  struct Known {
    const Nests* of;
    std::string layout;
    int calls = 0;
    int64_t work = 0;  // of the calls so far
    bool is_requested = false;
    bool is_answered = false;
    std::unique_ptr<const Nest> nest = {};
    std::string reason = {};
  };

 private:
  std::string text_;
  std::string target_;
  std::vector<std::unique_ptr<Known>> known_;
};

// Adds a nest that was compiled ahead of time, unless there is one already. text: without sizes of axes.
void provide(std::string_view text, std::string_view layout, std::unique_ptr<const Nest> nest);

// The nests of a program's text. Programs whose texts differ only in the sizes of axes share them; they are never
// freed, since a nest's code is never unloaded. target: the compiler's name of the target, such as "cuda sm_90"; empty
// for this CPU.
Nests& nests_of(std::string_view text, std::string_view target = {});

}  // namespace fourfold::program

// The interface for the compiler.
extern "C" {

// Passes the layout of a call with tensors of these sizes and strides to `take`. Returns 1 if they don't match the
// program, with the reason in fourfold_program_error().
FOURFOLD_EXPORT int32_t fourfold_program_layout(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, void* context,
    void (*take)(void* context, const char* layout));

// What `python -m fourfold objects` writes into object files (fourfold.compiler.nest.objects): nests for one CPU level, and
// where their code looks for the addresses of the level's vector functions. An object's initialisation provides them.
struct fourfold_object_nest {
  const char* text;  // without sizes of axes
  const char* layout;
  void* const* functions;
  int64_t count;
  int64_t bytes, bytes_of_column, bytes_of_panel, sums;
};
struct fourfold_object_function {
  const char* operation;
  const char* type;
  uintptr_t* address;
};
struct fourfold_object {
  const char* version;  // of fourfold
  int64_t abi_version;
  const char* level;  // "avx2", "avx512" or "neon"
  const fourfold_object_nest* nests;
  int64_t nest_count;
  const fourfold_object_function* functions;
  int64_t function_count;
};
// Adds the nests if they are for the level in use. Those of another version are reported on stderr and not used.
FOURFOLD_EXPORT void fourfold_nests_provide(const fourfold_object* object);

// Starts (1) or stops (0) collecting requests, depending on whether a compiler serves them.
FOURFOLD_EXPORT void fourfold_nests_serve(int32_t served);
// Takes the next request, waiting for at most `milliseconds`: one that calls wait for, or else the one with the most
// work. Returns 0 if there is none. text: without sizes of axes.
FOURFOLD_EXPORT int32_t fourfold_nests_next(
    int64_t milliseconds, void* context, void (*take)(void* context, const char* text, const char* layout, const char* target));
// Waits for at most `milliseconds` until all requests are answered. Returns 1 if they are, 0 if time is up, and -1 if no
// compiler serves them.
FOURFOLD_EXPORT int32_t fourfold_nests_wait(int64_t milliseconds);
// Answers a request with functions for this CPU. Their code must never be unloaded.
FOURFOLD_EXPORT void fourfold_nests_attach(
    const char* text, const char* layout, void* const* functions, int32_t count, int64_t bytes, int64_t bytes_of_column,
    int64_t bytes_of_panel, int32_t sums);
// Answers a request with code for another target, which is copied.
FOURFOLD_EXPORT void fourfold_nests_attach_code(
    const char* text, const char* layout, const char* target, const void* code, int64_t bytes, const char* const* kernels,
    const int64_t* threads, const int64_t* shared_bytes, int32_t count);
// Answers that the nest can't be compiled.
FOURFOLD_EXPORT void fourfold_nests_refuse(const char* text, const char* layout, const char* target, const char* reason);
}
