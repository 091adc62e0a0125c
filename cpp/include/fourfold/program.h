// Pointwise programs: elementwise operations and reductions along the last dimensions, computed in one pass over memory.
// torch.compile(backend="fourfold") generates them; python -m fourfold explain prints them. cpp/program/parse.cpp
// documents their grammar.
#pragma once

#include <fourfold/library.h>

extern "C" {

typedef struct fourfold_program fourfold_program;

// A tensor argument in device memory; strides in elements. dtype: the number of torch's ScalarType. A scalar argument
// has dim 0 and 8 bytes of data in host memory. base: on devices without memory addresses, the allocation; `data` minus
// `base` is then the offset in bytes. Other devices ignore it.
typedef struct fourfold_tensor {
  void* data;
  int32_t dtype;
  int32_t dim;
  const int64_t* sizes;
  const int64_t* strides;
  void* base;
} fourfold_tensor;

// Allocates an output of that layout; null cancels the call. Called, in order, for each output that isn't written into
// a given tensor.
typedef void* (*fourfold_allocate)(
    void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);

// Creates a program for tensors on a device: the number of its type in torch's DeviceType, and its index. Null if the
// text isn't a valid program, or no backend runs programs on that device; fourfold_program_error() then returns the
// reason.
FOURFOLD_EXPORT fourfold_program* fourfold_program_new(const char* text, int64_t length, int32_t device_type, int32_t device_index);
FOURFOLD_EXPORT void fourfold_program_delete(fourfold_program* program);

// Sets how the program runs. 0: interpreter. 1: compiled loop nests for repeated layouts, as soon as they are compiled;
// the interpreter until then. 2: compiled loop nests; calls wait for them. fourfold's Python package compiles the
// nests, in its process or ahead of time (python -m fourfold objects); without it 0, 1 and 2 are the same. Only the CPU has an interpreter: on other devices calls always wait for
// their kernels, and fail if there are none.
FOURFOLD_EXPORT void fourfold_program_generate(fourfold_program* program, int32_t generator);

// Counts the layouts of programs that this process has run, other than by 0: with loop nests, and without; as one without, if
// no nests were linked. For programs that link nests compiled ahead of time, to see whether they have all.
FOURFOLD_EXPORT void fourfold_nests_count(int64_t* compiled, int64_t* interpreted);

FOURFOLD_EXPORT int32_t fourfold_program_inputs(const fourfold_program* program);
FOURFOLD_EXPORT int32_t fourfold_program_outputs(const fourfold_program* program);
// The dtype of a scalar input; -1 for a tensor.
FOURFOLD_EXPORT int32_t fourfold_program_number(const fourfold_program* program, int32_t input);

// Whether that output may share that input's memory: the program reads each element before it writes it.
FOURFOLD_EXPORT int32_t fourfold_program_overwrites(const fourfold_program* program, int32_t output, int32_t input);

// Computes the outputs. outputs: null, or one tensor for each output, of any strides; its data may be null. An output
// is written into that tensor if it has the output's dtype and sizes, otherwise `allocate` is called. Sums over rows
// are always allocated. The tensor may share an input's memory if both have the same strides and
// fourfold_program_overwrites() allows it; otherwise outputs must not overlap other tensors. Returns 0; 1 if the inputs
// don't fit the program, with the reason in fourfold_program_error(); 2 if `allocate` returned null. Any number of
// threads may run one program at once.
FOURFOLD_EXPORT int32_t fourfold_program_run(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    fourfold_allocate allocate, void* context);

// How a program runs as the body of a loop.
struct fourfold_steps {
  int64_t count;
  const int32_t* feeds;           // for each input, the output of the step before that it reads, or -1
  const int64_t* input_strides;   // for each input, the distance from one step's tensor to the next one's, in elements
  const int64_t* output_strides;  // likewise; 0 for outputs that keep only the last step's value
};

// Runs steps->count steps in one loop nest. inputs, outputs: the first step's tensors; the caller allocates the
// outputs, which overlap no input. Returns 0; 1 if they don't fit the program, with the reason in
// fourfold_program_error(); 2 if there is no compiled nest for them (yet), with the reason there too: nothing has been
// computed then.
FOURFOLD_EXPORT int32_t fourfold_program_run_steps(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    const fourfold_steps* steps);
// Passes the layout that this nest is compiled for to `take`. Returns 0; 1 and 2 like fourfold_program_run_steps().
FOURFOLD_EXPORT int32_t fourfold_program_layout_of_steps(
    const fourfold_program* program, const fourfold_tensor* inputs, int32_t count, const fourfold_tensor* outputs,
    const fourfold_steps* steps, void* context, void (*take)(void* context, const char* layout));

// A tensor of a loop over steps. `tensor` is the first step's; step n's begins n * stride elements after it, or
// (n % period) * stride with a period.
typedef struct fourfold_moving_tensor {
  fourfold_tensor tensor;
  int64_t stride;
  int64_t period;  // or 0
} fourfold_moving_tensor;

enum fourfold_stage_kind {
  fourfold_stage_program,
  fourfold_stage_product,  // inputs a, b (, start): a b (+ start); or, for two or more rows, a, b, a2, b2 (, start):
                           // a b + a2 b2 (+ start). b and b2 are the same in every step
  fourfold_stage_copy,     // one input
  fourfold_stage_function  // no tensors
};

// A part of a step. tensors: its inputs, then its outputs. A program's outputs overlap none of its inputs.
// together: the number of steps for which one product is computed at once, in the first of them; 1 for each step by
// itself. Above 1 the product has no start, or one that all rows and steps share, and its inputs depend on no other
// stage.
typedef struct fourfold_stage {
  int32_t kind;
  int64_t together;
  int32_t inputs;
  int32_t outputs;
  const fourfold_moving_tensor* tensors;
  const fourfold_program* program;
  void (*function)(void* context, int64_t step);  // may throw a std::exception
  void* context;
  const char* name;  // of the program, for reasons why it can't run
} fourfold_stage;

// Runs the stages of `steps` steps, in order, on a device type given by its number in torch's DeviceType. The caller
// allocates all tensors. Returns 0; 1 if the tensors don't fit, or a function throws, with the reason in
// fourfold_program_error(); 2 if the backend can't run one of the stages, with the reason there too: nothing has been
// computed then. With no steps it only checks that.
FOURFOLD_EXPORT int32_t fourfold_stages_run(
    const fourfold_stage* stages, int32_t count, int64_t steps, int32_t device_type);

typedef struct fourfold_product fourfold_product;

// A product with a matrix b, (depth, columns), which is packed as best for so many rows and not read again. Null if the
// device has no packed products for its dtype or layout. device_type: the number of torch's DeviceType.
FOURFOLD_EXPORT fourfold_product* fourfold_product_new(const fourfold_tensor* b, int64_t rows, int32_t device_type);
// Whether another product with b, made for so many rows, would not be faster for them.
FOURFOLD_EXPORT int32_t fourfold_product_suits(const fourfold_product* product, int64_t rows);
FOURFOLD_EXPORT void fourfold_product_delete(fourfold_product* product);
// out = a b, or start + a b. start: (columns) or (rows, columns). Returns 0; 1 if it doesn't support the tensors'
// dtypes, sizes or layouts: nothing has been computed then. Any number of threads may run one product at once.
// in_parallel: whether all of torch's threads share the work, as they can't within a parallel region.
FOURFOLD_EXPORT int32_t fourfold_product_run(
    const fourfold_product* product, const fourfold_tensor* a, const fourfold_tensor* start, const fourfold_tensor* out,
    int32_t in_parallel);

// to[r * to_step + c] = from[c * from_step + r], for elements of `size` bytes: 1, 2, 4 or 8. Nests call it too.
FOURFOLD_EXPORT void fourfold_transpose_tile(
    int64_t size, const void* from, int64_t from_step, void* to, int64_t to_step, int64_t rows, int64_t columns);

// Writes the numbers of the device types that run programs, at most `most`; returns how many there are.
FOURFOLD_EXPORT int32_t fourfold_program_backends(int32_t* device_types, int32_t most);

// The error of this thread's last failed call.
FOURFOLD_EXPORT const char* fourfold_program_error();
}
