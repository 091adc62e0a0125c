// The functions that a checked build calls before each memory access: the compiler's instrumentation is that of
// AddressSanitizer for operating system kernels, and these are its runtime. This file is compiled without it.
#include <cinttypes>

#include "hip/hip_runtime_api.h"

extern "C" {
// The library's own image, from the linker.
extern const char __ehdr_start __attribute__((visibility("hidden")));
extern const char _end __attribute__((visibility("hidden")));
}

namespace gpusim {
namespace {

thread_local bool reporting = false;

bool within(const void* address, size_t bytes, const void* begin, const void* end) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= reinterpret_cast<uintptr_t>(begin) && at + bytes <= reinterpret_cast<uintptr_t>(end);
}

const char* shared_of(const Thread& thread) { return static_cast<const char*>(thread.block->shared); }

std::string access_of(const void* address, size_t bytes, const char* verb) {
  char text[80];
  std::snprintf(text, sizeof(text), "%s %zu bytes at %p, ", verb, bytes, address);
  return text;
}

std::string what_is_wrong(const Thread& thread, const void* address) {
  const char* shared = shared_of(thread);
  const size_t shared_bytes = thread.block->launch->shared_bytes;
  if (within(address, 1, shared - shared_margin, shared + shared_bytes + shared_margin)) {
    const std::string offset = std::to_string(static_cast<const char*>(address) - shared);
    return "which is byte " + offset + " of a block's shared memory of " + std::to_string(shared_bytes) + " bytes";
  }
  if (!arena().holds(address)) return "which is the host's memory";
  const unsigned device = arena().device_of(address);
  if (device == thread.block->launch->device) return arena().describe(address);
  return "which is memory of device " + std::to_string(device) + ", but it runs on device " +
         std::to_string(thread.block->launch->device);
}

[[noreturn, gnu::noinline]] void refuse(const void* address, size_t bytes, bool write) {
  reporting = true;
  const std::string what = access_of(address, bytes, write ? "writes" : "reads");
  if (current != nullptr) fault(*current, what + what_is_wrong(*current, address));
  fail("host code %swhich is memory of device %u; copy it, or launch a kernel", what.c_str(),
       arena().device_of(address));
}

// All that is neither the stack of the GPU thread that runs nor its block's shared memory.
[[gnu::noinline]] void check_elsewhere(const void* address, size_t bytes, bool write) {
  const Thread* thread = current;
  if (thread == nullptr) {
    if (!arena().holds(address) || reporting || arena().allows(address, bytes, true)) return;
    refuse(address, bytes, write);
  }
  if (thread->unchecked != 0) return;
  if (arena().holds(address)) {
    const bool its_own = arena().device_of(address) == thread->block->launch->device;
    if ((its_own || is_pinned(address)) && arena().allows(address, bytes, false)) return;
  } else if (within(address, bytes, &__ehdr_start, &_end)) {
    return;  // constants
  }
  if (!reporting) refuse(address, bytes, write);
}

// Most accesses are to a kernel's local arrays and to shared memory: without a frame of its own this takes a few
// instructions.
inline void check(const void* address, size_t bytes, bool write) {
  if (within(address, bytes, own.stack, own.stack_end) || within(address, bytes, own.shared, own.shared_end)) return;
  check_elsewhere(address, bytes, write);
}

}  // namespace
}  // namespace gpusim

// Kernels in separate libraries use the hooks of the library that loaded them.
#ifndef GPUSIM_HOOK_VISIBILITY
#define GPUSIM_HOOK_VISIBILITY "hidden"
#endif
#define GPUSIM_HOOK(name) extern "C" __attribute__((visibility(GPUSIM_HOOK_VISIBILITY))) void name
#define GPUSIM_HOOKS(size)                                                                      \
  GPUSIM_HOOK(__asan_load##size)(const void* address) { gpusim::check(address, size, false); }  \
  GPUSIM_HOOK(__asan_store##size)(const void* address) { gpusim::check(address, size, true); }

GPUSIM_HOOKS(1)
GPUSIM_HOOKS(2)
GPUSIM_HOOKS(4)
GPUSIM_HOOKS(8)
GPUSIM_HOOKS(16)
GPUSIM_HOOK(__asan_loadN)(const void* address, size_t bytes) { gpusim::check(address, bytes, false); }
GPUSIM_HOOK(__asan_storeN)(const void* address, size_t bytes) { gpusim::check(address, bytes, true); }
GPUSIM_HOOK(__asan_handle_no_return)() {}
GPUSIM_HOOK(__asan_before_dynamic_init)(const char*) {}
GPUSIM_HOOK(__asan_after_dynamic_init)() {}

// UndefinedBehaviorSanitizer's handler for a misaligned address.
namespace gpusim {
namespace {

struct Place {
  const char* file;
  uint32_t line, column;
};

struct Type {
  uint16_t kind, detail;
  char name[1];
};

struct TypeMismatch {
  Place place;
  const Type* type;
  unsigned char log_alignment, check;
};

}  // namespace
}  // namespace gpusim

extern "C" __attribute__((visibility(GPUSIM_HOOK_VISIBILITY), noreturn)) void __ubsan_handle_type_mismatch_v1_abort(
    const gpusim::TypeMismatch* found, uintptr_t address) {
  gpusim::reporting = true;
  char text[400];
  const char* verb = found->check == 1 || found->check == 3 ? "writes" : "reads";  // or uses of members
  std::snprintf(text, sizeof(text), "%s a %s at 0x%" PRIxPTR ", which is no multiple of %u (%s:%u)", verb,
                found->type->name, address, 1u << found->log_alignment, found->place.file, found->place.line);
  if (gpusim::current != nullptr) gpusim::fault(*gpusim::current, text);
  gpusim::fail("host code %s", text);
}
