// Pointwise programs: elementwise operations and reductions along the last dimensions, computed in one pass over memory.
// torch.compile(backend="fourfold") generates them; python -m fourfold explain prints them. cpp/program/parse.cpp has their
// grammar.
#pragma once

#include <fourfold/library.h>

extern "C" {

typedef struct fourfold_program fourfold_program;

// A tensor of a call, in the device's memory, strides in elements. dtype: the number of torch's ScalarType. A number that is
// given by itself has dim 0, and 8 bytes of data, in the host's memory. base: where a device's memory has no addresses, the
// allocation that `data` is so many bytes behind; otherwise not read.
typedef struct fourfold_tensor {
  void* data;
  int32_t dtype;
  int32_t dim;
  const int64_t* sizes;
  const int64_t* strides;
  void* base;
} fourfold_tensor;

// Memory for an output of that layout, or null to give up the call: called in turn for each output that is written into no given
// tensor.
typedef void* (*fourfold_allocate)(
    void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);

// A program for tensors on a device: the number of its type in torch's DeviceType, and its index. Null where the text is no valid program, or no backend
// runs programs there; fourfold_program_error() then says why.
FOURFOLD_EXPORT fourfold_program* fourfold_program_new(const char* text, int64_t length, int32_t device_type, int32_t device_index);
FOURFOLD_EXPORT void fourfold_program_delete(fourfold_program* program);

// How it runs from now on: 0 by the interpreter; 1 by loop nests for the layouts that come again, as soon as they are compiled; 2
// by loop nests, waiting for them. They need fourfold's Python package, which compiles them; without it 0, 1 and 2 are the same.
// Only the CPU has an interpreter: elsewhere a call always waits for its kernels, and fails if there are none.
FOURFOLD_EXPORT void fourfold_program_generate(fourfold_program* program, int32_t generator);

FOURFOLD_EXPORT int32_t fourfold_program_inputs(const fourfold_program* program);
FOURFOLD_EXPORT int32_t fourfold_program_outputs(const fourfold_program* program);
// Of an input that is a number, its dtype; of a tensor -1.
FOURFOLD_EXPORT int32_t fourfold_program_number(const fourfold_program* program, int32_t input);

// Whether that output may be written into the memory of that input: the program reads each element before it writes it.
FOURFOLD_EXPORT int32_t fourfold_program_overwrites(const fourfold_program* program, int32_t output, int32_t input);

// Computes the outputs. outputs: null, or a tensor for each, of any strides, that the output is written into if it has the output's
// dtype and sizes; data null for none. It may be an input if it has its strides and fourfold_program_overwrites() allows it; outputs
// overlap nothing else. Sums over rows are written into memory of their own. Returns 0; 1 if the inputs don't fit the program,
// with the reason in fourfold_program_error(); 2 if `allocate` gave up. Any number of threads may run one program at once.
FOURFOLD_EXPORT int32_t fourfold_program_run(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    fourfold_allocate allocate, void* context);

// A program as the body of a loop.
struct fourfold_steps {
  int64_t count;
  const int32_t* feeds;           // for each input the output whose value the next step reads there, or -1
  const int64_t* input_strides;   // for each input, how far the next step's tensor lies behind a step's, in elements
  const int64_t* output_strides;  // likewise; 0 for outputs of which the last step's is kept
};

// Runs so many steps in one loop nest. inputs, outputs: the first step's tensors; the outputs' memory is given, and overlaps no
// input's. Returns 0; 1 if they don't fit the program, with the reason in fourfold_program_error(); 2 if there is no nest for
// them, or not yet: nothing has been computed then.
FOURFOLD_EXPORT int32_t fourfold_program_run_steps(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    const fourfold_steps* steps);

// A tensor of a loop over steps: the first step's. That of step n lies n * stride elements behind it; with a period, the
// remainder of n by the period counts instead.
typedef struct fourfold_moving_tensor {
  fourfold_tensor tensor;
  int64_t stride;
  int64_t period;  // or 0
} fourfold_moving_tensor;

enum fourfold_stage_kind {
  fourfold_stage_program,
  fourfold_stage_product,  // a b, or a b + start, of inputs a, b and start; or a b + a2 b2 (+ start) of two rows and more, of inputs
                           // a, b, a2, b2 and start; b and b2 are the same in every step
  fourfold_stage_copy,     // of one input
  fourfold_stage_function  // no tensors
};

// A part of a step. tensors: its inputs, then its outputs. A program's outputs overlap none of its inputs.
// together: of a product without start, or with one that all rows and steps share: for how many steps it is computed at once,
// in the first of them; 1 for each step by itself. None of its inputs depends on other stages then.
typedef struct fourfold_stage {
  int32_t kind;
  int64_t together;
  int32_t inputs;
  int32_t outputs;
  const fourfold_moving_tensor* tensors;
  const fourfold_program* program;
  void (*function)(void* context, int64_t step);  // may throw a std::exception
  void* context;
} fourfold_stage;

// Runs the stages of so many steps, in order, on the device of that number in torch's DeviceType. The tensors' memory is given.
// Returns 0; 1 if the tensors don't fit, or a function throws, with the reason in fourfold_program_error(); 2 if there is a stage
// that the backend has no code for: nothing has been computed then.
FOURFOLD_EXPORT int32_t fourfold_stages_run(
    const fourfold_stage* stages, int32_t count, int64_t steps, int32_t device_type);

// Writes the numbers of the device types that programs run on, at most so many; returns how many there are.
FOURFOLD_EXPORT int32_t fourfold_program_backends(int32_t* device_types, int32_t most);

// The error of this thread's last call that failed.
FOURFOLD_EXPORT const char* fourfold_program_error();
}
