// Programs on devices that run grids of threads. Kernels are compiled at the first call with a layout. A backend
// implements loading and launching (GridDevice, LoadedGrid).
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

// One call: its kernels are launched one after the other on torch's current stream of the device.
struct GridRun {
  std::vector<int64_t> blocks;  // of each kernel
  std::vector<int64_t> numbers;
  std::vector<fourfold::Output> tensors;  // inputs, including scalars, then outputs
  int64_t scratch_bytes = 0;    // size of a scratch tensor that the backend allocates and passes after them
};

// A nest's code on a device. It is never unloaded.
class LoadedGrid {
 public:
  virtual ~LoadedGrid() = default;
  // Launches asynchronously. Throws if the launch fails.
  virtual void run(const GridRun& run) const = 0;
};

class GridDevice {
 public:
  virtual ~GridDevice() = default;
  // Whether `data` is an address in the device's memory. Otherwise `base` is a handle of an allocation that is aligned
  // to `alignment` of grid_call.cpp, and only data - base is meaningful.
  virtual bool has_addresses() const { return true; }
  // The compiler's target for the device of that index.
  virtual std::string target(int32_t index) const = 0;
  // The nest must outlive the result.
  virtual std::unique_ptr<const LoadedGrid> load(int32_t index, const Nest& nest) const = 0;
};

// A program on such a device. Device and program must outlive the result.
std::unique_ptr<Executable> compile_grid(const GridDevice& device, int32_t index, const Program& program, std::string_view text);

// Each such device registers itself when the library is loaded, under the number of its device type in torch.
struct GridRegistration {
  GridRegistration(int32_t device_type, const GridDevice& device);
};

}  // namespace fourfold::program

extern "C" {

// Registers a GridDevice that another library implements, compiled with the same headers; the simulators use this. It
// replaces the backend of that device type. The device must never be destroyed.
FOURFOLD_EXPORT void fourfold_register_grid_device(int32_t device_type, const void* device);
}

// Used once in a backend's file: FOURFOLD_GRID_DEVICE(a torch DeviceType, a GridDevice).
#ifndef FOURFOLD_GRID_DEVICE
#define FOURFOLD_GRID_DEVICE(type, device) const fourfold::program::GridRegistration registration(static_cast<int32_t>(type), device)
#endif
