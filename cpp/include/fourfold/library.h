// The C functions that libfourfold exports besides its operators. Operators are called through torch's dispatcher as
// fourfold::*: fourfold/fourfold.h calls them, fourfold/autograd.h adds gradients.
#pragma once

#include <stdint.h>

#if defined(_WIN32) && defined(FOURFOLD_BUILDS_LIBRARY)
#define FOURFOLD_EXPORT __declspec(dllexport)
#elif defined(_WIN32)
#define FOURFOLD_EXPORT __declspec(dllimport)
#else
#define FOURFOLD_EXPORT __attribute__((visibility("default")))
#endif

// The ABI version of this header.
#define FOURFOLD_ABI_VERSION 3

extern "C" {

// The ABI version of the loaded library. It is incremented when programs built against an older libfourfold can no
// longer run with it. Call this in every program that links libfourfold: the linker may drop a library from which a
// program uses no symbol (--as-needed).
FOURFOLD_EXPORT int fourfold_abi_version();

// Null in the first copy of libfourfold that a process loads. A second copy registers nothing, and this returns an error
// that names both files (static storage). Callers that link libfourfold check it.
FOURFOLD_EXPORT const char* fourfold_other_copy_error();

// Whether this copy has begun to register its operators. Another copy calls this while it is loaded.
FOURFOLD_EXPORT int fourfold_has_registered();

// How the library was built: "key=value" lines. Static storage.
FOURFOLD_EXPORT const char* fourfold_build_facts();

// The CPU level whose kernels run: "default", "avx2", "avx512", "avx512_bf16" or "amx". Static storage. Null when
// FOURFOLD_CPU_CAPABILITY names a level that this library or CPU does not have, or when the library has no level for this
// CPU; fourfold_cpu_capability_error() then returns the error.
FOURFOLD_EXPORT const char* fourfold_cpu_capability();
FOURFOLD_EXPORT const char* fourfold_cpu_capability_error();

// The size in bytes of the result of fourfold::<op>_prepack on this CPU, for weights of dtype "float32", "float64",
// "float16" or "bfloat16" and these sizes; -1 for operators without packed weights and other dtypes.
FOURFOLD_EXPORT int64_t fourfold_prepacked_bytes(
    const char* op, const char* dtype, int64_t input_size, int64_t hidden_size);

// The address of an elementary function of programs ("exp", "pow", …) in "float32" or "float64". It takes and returns
// the native vectors of the CPU level in use (__m256, __m256d, …) by value. 0 if this level has no such function.
FOURFOLD_EXPORT uintptr_t fourfold_vector_function(const char* operation, const char* type);
}
