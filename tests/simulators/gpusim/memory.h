// Device memory. In a checked build it is an arena that records for every byte whether it is allocated, and checks.cpp
// checks each access of kernels and host code. In other builds it is host memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include "device.h"

#pragma GCC visibility push(hidden)

namespace gpusim {

// Fills fresh memory with junk. Only the first bytes of gigabytes are filled, so that the rest uses no memory.
inline void spoil(void* memory, size_t bytes) { std::memset(memory, junk, std::min(bytes, size_t(1) << 26)); }

// One address range per device. A byte of `shadow` describes 8 bytes of memory: how many of them from the first on are
// allocated, and whether host code may use them too.
class Arena {
 public:
  static constexpr size_t device_bytes = size_t{1} << 36;
  static constexpr unsigned char host_too = 0x80;
  static constexpr size_t alignment = 256, gap = 256;  // the alignment of a device's allocations

  struct Block {
    size_t bytes;
    bool live;
  };

  Arena() : devices_(device_count()) {
    base_ = reserve(devices_ * device_bytes);
    shadow_ = reinterpret_cast<unsigned char*>(reserve(devices_ * device_bytes / 8));
    for (unsigned device = 0; device < devices_; ++device) next_.push_back(base_ + device * device_bytes);
  }

  bool holds(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base_) < devices_ * device_bytes;
  }

  unsigned device_of(const void* address) const {
    return static_cast<unsigned>((static_cast<const char*>(address) - base_) / device_bytes);
  }

  // Whether all the bytes are allocated; for host code, whether it may use them too.
  bool allows(const void* address, size_t bytes, bool to_host) const {
    const char* at = static_cast<const char*>(address);
    const char* const end = at + bytes;
    while (at < end) {
      if (!holds(at)) return false;
      const size_t offset = static_cast<size_t>(at - base_);
      const unsigned char known = shadow_[offset / 8];
      const size_t within = std::min<size_t>(8 - offset % 8, static_cast<size_t>(end - at));
      if (offset % 8 + within > (known & 0x0Fu) || (to_host && (known & host_too) == 0)) return false;
      at += within;
    }
    return true;
  }

  void* allocate(unsigned device, size_t bytes, bool for_host_too) {
    const std::lock_guard lock(mutex_);
    const size_t room = room_for(bytes);
    std::deque<char*>& spare = spare_[{device, room}];
    char* memory = nullptr;
    // Freed memory is not reused for a while, so that accesses to it are detected.
    if (spare.size() > quarantine / room) {
      memory = spare.front();
      spare.pop_front();
    } else {
      memory = next_[device];
      if (static_cast<size_t>(memory - base_) + room > (device + 1) * device_bytes) return nullptr;
      next_[device] += room;
    }
    spoil(memory, bytes);
    mark(memory, bytes, for_host_too ? host_too : 0);
    known_[memory] = {bytes, true};
    return memory;
  }

  // Returns whether it was allocated.
  bool release(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(static_cast<char*>(memory));
    if (found == known_.end() || !found->second.live) return false;
    const size_t bytes = found->second.bytes, room = room_for(bytes);
    std::memset(&shadow_[static_cast<size_t>(found->first - base_) / 8], 0, (bytes + 7) / 8);
    if (room >= size_t{1} << 20) madvise(memory, room, MADV_DONTNEED);
    found->second.live = false;
    spare_[{device_of(memory), room}].push_back(found->first);
    return true;
  }

  // Lets host code use all of an allocation, or forbids it again.
  void lend(const void* address, bool lent) {
    const std::lock_guard lock(mutex_);
    const auto found = block_at(static_cast<const char*>(address));
    if (found != known_.end() && found->second.live) mark(found->first, found->second.bytes, lent ? host_too : 0);
  }

  std::string describe(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = block_at(static_cast<const char*>(address));
    if (found == known_.end()) return "which was never allocated";
    const long long offset = static_cast<const char*>(address) - found->first;
    const std::string of = " of an allocation of " + std::to_string(found->second.bytes) + " bytes";
    if (!found->second.live) return "which has been freed: byte " + std::to_string(offset) + of;
    return "which is byte " + std::to_string(offset) + of;
  }

 private:
  static constexpr size_t quarantine = size_t{4} << 20;  // bytes of each size

  static char* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no addresses for the devices' memory; GPUSIM_DEVICES=1 takes fewer");
    return static_cast<char*>(memory);
  }

  // With an unallocated gap after it. Sizes are rounded so that freed memory can be reused.
  static size_t room_for(size_t bytes) {
    size_t room = (bytes + gap + alignment - 1) / alignment * alignment;
    if (room > 16 * 1024) room = size_t{1} << (64 - __builtin_clzll(room - 1));
    return room;
  }

  void mark(char* memory, size_t bytes, unsigned char flag) {
    unsigned char* at = &shadow_[static_cast<size_t>(memory - base_) / 8];
    std::memset(at, 8 | flag, bytes / 8);
    if (bytes % 8 != 0) at[bytes / 8] = static_cast<unsigned char>(bytes % 8 | flag);
  }

  std::map<char*, Block>::iterator block_at(const char* address) {
    auto found = known_.upper_bound(const_cast<char*>(address));
    return found == known_.begin() ? known_.end() : --found;
  }

  unsigned devices_;
  char* base_ = nullptr;
  unsigned char* shadow_ = nullptr;
  std::mutex mutex_;
  std::deque<char*> next_;
  std::map<char*, Block> known_;
  std::map<std::pair<unsigned, size_t>, std::deque<char*>> spare_;
};

inline Arena& arena() {
  static auto* const it = new Arena;
  return *it;
}

// Memory for both sides: hipHostMalloc's, which a device reads in place.
inline std::mutex pinned_mutex;
inline std::map<const char*, size_t> pinned;

inline bool is_pinned(const void* address) {
  const std::lock_guard lock(pinned_mutex);
  auto found = pinned.upper_bound(static_cast<const char*>(address));
  if (found == pinned.begin()) return false;
  --found;
  return static_cast<const char*>(address) < found->first + found->second;
}

// Exactly the requested size, so that AddressSanitizer too detects the first byte beyond it.
inline void* allocate(unsigned device, size_t bytes, bool for_host_too) {
  if (GPUSIM_CHECKED) return arena().allocate(device, bytes, for_host_too);
  void* memory = nullptr;
  if (posix_memalign(&memory, Arena::alignment, bytes) != 0) return nullptr;
  spoil(memory, bytes);
  return memory;
}

inline hipError_t release(void* memory) {
  if (!GPUSIM_CHECKED) std::free(memory);
  else if (memory != nullptr && !arena().release(memory)) return hipErrorInvalidValue;
  return hipSuccess;
}

// Whether a copy may treat these bytes as device memory: CUDA rejects a range of mixed kinds.
inline bool is_device_range(const void* memory, size_t bytes) {
  return !GPUSIM_CHECKED || arena().allows(memory, bytes, false);
}
inline bool is_host_range(const void* memory, size_t bytes) {
  return !GPUSIM_CHECKED || !arena().holds(memory) || arena().allows(memory, bytes, true);
}

}  // namespace gpusim

#pragma GCC visibility pop
