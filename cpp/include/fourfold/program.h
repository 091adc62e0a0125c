// Pointwise programs: elementwise operations and reductions along the last dimensions, computed in one pass over memory.
// torch.compile(backend="fourfold") writes them; python -m fourfold explain shows them. cpp/program/parse.cpp says how one is
// written.
#pragma once

#include <fourfold/library.h>

extern "C" {

typedef struct fourfold_program fourfold_program;

// A tensor of a call, in the CPU's memory, strides in elements. dtype: the number of torch's ScalarType. A number that is
// given by itself has dim 0, and 8 bytes of data.
typedef struct fourfold_tensor {
  void* data;
  int32_t dtype;
  int32_t dim;
  const int64_t* sizes;
  const int64_t* strides;
} fourfold_tensor;

// Memory for an output of that layout, or null to give up the call: called for each output in turn.
typedef void* (*fourfold_allocate)(
    void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);

// Null where the text is no program; fourfold_program_error() then says why.
FOURFOLD_EXPORT fourfold_program* fourfold_program_new(const char* text, int64_t length);
FOURFOLD_EXPORT void fourfold_program_delete(fourfold_program* program);

FOURFOLD_EXPORT int32_t fourfold_program_inputs(const fourfold_program* program);
FOURFOLD_EXPORT int32_t fourfold_program_outputs(const fourfold_program* program);
// Of an input that is a number, its dtype; of a tensor -1.
FOURFOLD_EXPORT int32_t fourfold_program_number(const fourfold_program* program, int32_t input);

// Computes the outputs. 0, or 1 where the inputs are not what the program takes: fourfold_program_error() then says why; and
// 2 where `allocate` gave up. Any number of threads may run one program at once.
FOURFOLD_EXPORT int32_t fourfold_program_run(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, fourfold_allocate allocate, void* context);

// The program as C++, in the memory of this thread until its next call: a function for each stage that the CPU computes it in,
// and an array of them, which has this name. Null where it can't be: fourfold_program_error() then says why.
FOURFOLD_EXPORT const char* fourfold_program_source(const fourfold_program* program, const char* name);

// From now on these functions compute the stages: the array of that name, from the source compiled for the CPU level in use,
// which has to stay loaded. Before the program's first run.
FOURFOLD_EXPORT void fourfold_program_use(fourfold_program* program, const void* stages);

// What the last call of this thread that failed has to say.
FOURFOLD_EXPORT const char* fourfold_program_error();
}
