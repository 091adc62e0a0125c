// The simulated devices: the limits of a compute capability, the current device, and how many blocks fit on one.
#pragma once

#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "errors.h"
#include "gpusim.h"
#include "symbols.h"

#pragma GCC visibility push(hidden)

namespace gpusim {

inline uint64_t environment_number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*end != '\0') fail("%s is %s, which is not a number", name, text);
  return value;
}

// By compute capability, from CUDA's programming guide.
struct Capability {
  const char* name;
  int major, minor;
  unsigned threads, blocks;  // per multiprocessor
  unsigned shared_kilobytes, shared_optin_kilobytes;
};

inline constexpr Capability capabilities[] = {
    {"7.5", 7, 5, 1024, 16, 64, 64},    {"8.0", 8, 0, 2048, 32, 164, 163}, {"8.6", 8, 6, 1536, 16, 100, 99},
    {"8.9", 8, 9, 1536, 24, 100, 99},   {"9.0", 9, 0, 2048, 32, 228, 227}, {"12.0", 12, 0, 1536, 24, 100, 99},
};

inline const Capability& capability() {
  const char* asked = std::getenv("GPUSIM_CAPABILITY");
  const std::string name = asked == nullptr || *asked == '\0' ? "8.6" : asked;
  std::string known;
  for (const Capability& it : capabilities) {
    if (name == it.name) return it;
    known += std::string(known.empty() ? "" : ", ") + it.name;
  }
  fail("GPUSIM_CAPABILITY is %s, which is none of %s", name.c_str(), known.c_str());
}

// Few multiprocessors, so that cooperative grids stay small.
struct Device {
  const Capability& kind = capability();
  unsigned multiprocessors = std::max(1u, static_cast<unsigned>(environment_number("GPUSIM_MULTIPROCESSORS", 4)));
  size_t shared_optin = environment_number("GPUSIM_SHARED_MEMORY", kind.shared_optin_kilobytes * 1024);
  size_t shared_default = std::min<size_t>(48 * 1024, shared_optin);
  size_t shared_reserved = kind.major < 8 ? 0 : 1024;  // per resident block
  size_t shared_per_multiprocessor = std::max<size_t>(kind.shared_kilobytes * 1024, shared_optin + shared_reserved);
  unsigned threads_per_block = 1024;
  unsigned threads_per_multiprocessor = kind.threads;
  unsigned blocks_per_multiprocessor = kind.blocks;
  unsigned registers_per_multiprocessor = 65536;
  unsigned block_limit[3] = {1024, 1024, 64};
  unsigned grid_limit[3] = {2147483647, 65535, 65535};
};

inline unsigned device_count() { return std::max(1u, static_cast<unsigned>(environment_number("GPUSIM_DEVICES", 2))); }

// Each host thread has its own, as in the runtime.
inline thread_local unsigned current_device __attribute__((tls_model("initial-exec"))) = 0;

// The dynamic shared memory that each kernel may use, if hipFuncSetAttribute has changed it.
inline std::mutex function_mutex;
inline std::map<const void*, size_t> function_shared_limit;

inline size_t shared_limit(const void* kernel) {
  const std::lock_guard lock(function_mutex);
  const auto found = function_shared_limit.find(kernel);
  return found == function_shared_limit.end() ? Device().shared_default : found->second;
}

// The file of GPUSIM_REGISTERS: lines of "registers symbol", as ptxas counts them and the linker names a kernel.
inline const std::map<std::string, unsigned>& counted_registers() {
  static const auto* const counted = [] {
    auto* result = new std::map<std::string, unsigned>;
    const char* name = std::getenv("GPUSIM_REGISTERS");
    if (name == nullptr || *name == '\0') return result;
    std::ifstream file(name);
    std::string symbol;
    for (unsigned registers; file >> registers >> symbol;) (*result)[symbol] = registers;
    const bool read = file.eof() && !result->empty();
    if (!read) fail("GPUSIM_REGISTERS is %s, which has no lines of registers and symbol", name);
    return result;
  }();
  return *counted;
}

// Per thread: the count in the file, or else the maximum for a kernel whose __launch_bounds__ allow such blocks.
inline unsigned registers_of(const void* kernel, unsigned threads) {
  if (!counted_registers().empty()) {
    const auto found = counted_registers().find(symbol_of(kernel));
    if (found != counted_registers().end()) return found->second;
  }
  constexpr unsigned most = 255, unit = 8;
  const unsigned warps = (threads + warp_width - 1) / warp_width;
  return std::min(most, Device().registers_per_multiprocessor / (warps * warp_width) / unit * unit);
}

// A block's share of a multiprocessor's registers, which are allocated to warps in units of 256.
inline unsigned block_registers(const void* kernel, unsigned threads) {
  const unsigned warps = (threads + warp_width - 1) / warp_width;
  return warps * ((registers_of(kernel, threads) * warp_width + 255) / 256 * 256);
}

inline unsigned resident_blocks_per_multiprocessor(const void* kernel, unsigned threads, size_t shared_bytes) {
  const Device device;
  if (threads == 0 || threads > device.threads_per_block || shared_bytes > device.shared_optin) return 0;
  const size_t shared = std::max<size_t>(shared_bytes + device.shared_reserved, 1);
  return static_cast<unsigned>(std::min<size_t>(
      {device.blocks_per_multiprocessor, device.threads_per_multiprocessor / threads,
       device.shared_per_multiprocessor / shared,
       device.registers_per_multiprocessor / block_registers(kernel, threads)}));
}

inline bool within(dim3 size, const unsigned (&limit)[3]) {
  return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= limit[0] && size.y <= limit[1] && size.z <= limit[2];
}

inline hipError_t refusal(const Launch& launch) {
  if (const int asked = next_launch_error.exchange(hipSuccess)) return static_cast<hipError_t>(asked);
  const Device device;
  if (launch.kernel == nullptr) return hipErrorInvalidDeviceFunction;
  if (!within(launch.block, device.block_limit) || !within(launch.grid, device.grid_limit)) {
    return hipErrorInvalidConfiguration;
  }
  if (uint64_t{launch.block.x} * launch.block.y * launch.block.z > device.threads_per_block) {
    return hipErrorInvalidConfiguration;
  }
  if (launch.shared_bytes > shared_limit(launch.kernel)) return hipErrorInvalidValue;
  const unsigned threads = launch.threads();
  if (block_registers(launch.kernel, threads) > device.registers_per_multiprocessor) {
    return hipErrorLaunchOutOfResources;
  }
  const uint64_t resident = uint64_t{device.multiprocessors} *
                            resident_blocks_per_multiprocessor(launch.kernel, threads, launch.shared_bytes);
  if (launch.cooperative && launch.blocks() > resident) return hipErrorCooperativeLaunchTooLarge;
  return hipSuccess;
}

}  // namespace gpusim

#pragma GCC visibility pop
