// What libfourfold exports besides its operators, which are reached through torch's dispatcher as fourfold::*:
// fourfold/fourfold.h calls them, fourfold/autograd.h gives them gradients.
#pragma once

#include <stdint.h>

#if defined(_WIN32) && defined(FOURFOLD_BUILDS_LIBRARY)
#define FOURFOLD_EXPORT __declspec(dllexport)
#elif defined(_WIN32)
#define FOURFOLD_EXPORT __declspec(dllimport)
#else
#define FOURFOLD_EXPORT __attribute__((visibility("default")))
#endif

// What this header was written for.
#define FOURFOLD_ABI_VERSION 2

extern "C" {

// Rises when a program built against an older libfourfold can no longer run with this one. A program that takes no
// symbol of a library may lose it at link time (--as-needed), so whoever links libfourfold calls this.
FOURFOLD_EXPORT int fourfold_abi_version();

// Null in the first copy of libfourfold that a process loads. A second copy registers nothing, and this returns an error
// that names both files (static storage). Callers that link libfourfold check it.
FOURFOLD_EXPORT const char* fourfold_other_copy_error();

// Whether this copy has begun to register its operators. One copy asks another, while it is loaded.
FOURFOLD_EXPORT int fourfold_has_registered();

// "key=value" lines: how the library was built. Static storage.
FOURFOLD_EXPORT const char* fourfold_build_facts();

// The CPU level whose kernels run: "default", "avx2", "avx512", "avx512_bf16" or "amx". Static storage. Null when
// FOURFOLD_CPU_CAPABILITY asks for a level that this library or CPU does not have; fourfold_cpu_capability_error() then
// says so.
FOURFOLD_EXPORT const char* fourfold_cpu_capability();
FOURFOLD_EXPORT const char* fourfold_cpu_capability_error();

// How many bytes fourfold::<op>_prepack gives for weights of "float32" (float16, bfloat16, float64) and these sizes on this
// CPU; -1 for an operator that packs nothing, or another dtype.
FOURFOLD_EXPORT int64_t fourfold_prepacked_bytes(
    const char* op, const char* dtype, int64_t input_size, int64_t hidden_size);

// The address of an elementary function of programs ("exp", "pow", …) in "float32" or "float64": its operands and its result
// are the native vectors of the CPU level in use (__m256, __m256d, …), by value. 0 where this level has no such function.
FOURFOLD_EXPORT uintptr_t fourfold_vector_function(const char* operation, const char* type);
}
