// The interface between the simulated framework and the code that passes torch's tensors to it.
#pragma once

#include <cstddef>

// The MTLBuffer of an allocation: the data pointer of an MPS tensor without its offset.
void* gpusim_metal_buffer(void* memory, std::size_t bytes);
void* gpusim_metal_memory(void* buffer);
