// Between the simulated framework and what gives torch's tensors to it.
#pragma once

#include <cstddef>

// The MTLBuffer of an allocation: what the data pointer of an MPS tensor is, but for its offset.
void* gpusim_metal_buffer(void* memory, std::size_t bytes);
void* gpusim_metal_memory(void* buffer);
