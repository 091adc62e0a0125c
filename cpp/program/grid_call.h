// Programs on a device that runs grids of threads, whose kernels are compiled when a layout first comes. A backend says how it
// loads and launches them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kind.h"
#include "program/backend.h"
#include "program/nests.h"

namespace fourfold::program {

// One call: its kernels are launched one after the other, on what torch's current stream of the device is.
struct GridRun {
  std::vector<int64_t> blocks;  // of each kernel
  std::vector<int64_t> numbers;
  std::vector<fourfold::Output> tensors;  // inputs, also those that are numbers, then outputs
  int64_t scratch_bytes = 0;    // of one more tensor behind them, which the backend allocates
};

// A nest's code on a device. It stays loaded as long as the process.
class LoadedGrid {
 public:
  virtual ~LoadedGrid() = default;
  // Returns before the device is done. Throws where it can't be launched.
  virtual void run(const GridRun& run) const = 0;
};

class GridDevice {
 public:
  virtual ~GridDevice() = default;
  // Whether a tensor's base is the address of its memory; otherwise it stands for memory that is aligned to `alignment` of
  // grid_call.cpp, and offsets say how the tensor lies in it.
  virtual bool has_addresses() const { return true; }
  // What code is compiled for on a device of that index, as the compiler names it.
  virtual std::string target(int32_t index) const = 0;
  // The nest outlives the result.
  virtual std::unique_ptr<const LoadedGrid> load(int32_t index, const Nest& nest) const = 0;
};

// A program on such a device, which outlives it, as the program does.
std::unique_ptr<Executable> compile_grid(const GridDevice& device, int32_t index, const Program& program, std::string_view text);

// Such a device registers itself when the library is loaded, for its number in torch.
struct GridRegistration {
  GridRegistration(int32_t device_type, const GridDevice& device);
};

}  // namespace fourfold::program

extern "C" {

// For a device whose code is in a library of its own, compiled with the same headers: a GridDevice, which stays, takes the place of
// what ran programs on devices of that type. The simulators do so.
FOURFOLD_EXPORT void fourfold_register_grid_device(int32_t device_type, const void* device);
}

// Once in the file of a backend: (a DeviceType of torch's, a GridDevice).
#ifndef FOURFOLD_GRID_DEVICE
#define FOURFOLD_GRID_DEVICE(type, device) const fourfold::program::GridRegistration registration(static_cast<int32_t>(type), device)
#endif
