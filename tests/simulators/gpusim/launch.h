// The simulated device's limits, and launches: which are refused, and which OS threads run the others.
#pragma once

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <type_traits>

#include "errors.h"
#include "gpusim.h"

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

// Small, so that cooperative grids stay small. The shared memory is that of compute capability 8.6 and 8.9.
struct Device {
  unsigned multiprocessors = std::max(1u, static_cast<unsigned>(environment_number("GPUSIM_MULTIPROCESSORS", 4)));
  size_t shared_optin = environment_number("GPUSIM_SHARED_MEMORY", 99 * 1024);
  size_t shared_default = std::min<size_t>(48 * 1024, shared_optin);
  size_t shared_reserved = 1024;  // of each resident block
  unsigned threads_per_block = 1024;
  unsigned threads_per_multiprocessor = 1024;
  unsigned blocks_per_multiprocessor = 16;
  unsigned block_limit[3] = {1024, 1024, 64};
  unsigned grid_limit[3] = {2147483647, 65535, 65535};
};

// How much dynamic shared memory each kernel may use, where hipFuncSetAttribute has changed it.
inline std::mutex function_mutex;
inline std::map<const void*, size_t> function_shared_limit;

inline size_t shared_limit(const void* kernel) {
  const std::lock_guard lock(function_mutex);
  const auto found = function_shared_limit.find(kernel);
  return found == function_shared_limit.end() ? Device().shared_default : found->second;
}

inline bool within(dim3 size, const unsigned (&limit)[3]) {
  return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= limit[0] && size.y <= limit[1] && size.z <= limit[2];
}

inline unsigned resident_blocks_per_multiprocessor(unsigned threads, size_t shared_bytes) {
  const Device device;
  if (threads == 0 || threads > device.threads_per_block || shared_bytes > device.shared_optin) return 0;
  const size_t by_shared = (device.shared_optin + device.shared_reserved) / (shared_bytes + device.shared_reserved);
  return static_cast<unsigned>(std::min<size_t>(
      {device.blocks_per_multiprocessor, device.threads_per_multiprocessor / threads, by_shared}));
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
  const uint64_t resident = uint64_t{device.multiprocessors} *
                            resident_blocks_per_multiprocessor(launch.threads(), launch.shared_bytes);
  if (launch.cooperative && launch.blocks() > resident) return hipErrorCooperativeLaunchTooLarge;
  return hipSuccess;
}

// Schedulers keep their fibers from one launch to the next; they are never destroyed.
class SchedulerLease {
 public:
  SchedulerLease() {
    const std::lock_guard lock(mutex);
    if (spare().empty()) spare().push_back(new Scheduler);
    // That with the most stacks: if each came to have a large grid's, the system would run out of mappings for them.
    const auto fewer = [](Scheduler* a, Scheduler* b) { return a->fibers() < b->fibers(); };
    const auto largest = std::max_element(spare().begin(), spare().end(), fewer);
    scheduler_ = *largest;
    spare().erase(largest);
  }
  ~SchedulerLease() {
    const std::lock_guard lock(mutex);
    spare().push_back(scheduler_);
  }
  SchedulerLease(const SchedulerLease&) = delete;
  SchedulerLease& operator=(const SchedulerLease&) = delete;
  Scheduler* operator->() const { return scheduler_; }

 private:
  static std::vector<Scheduler*>& spare() {
    static auto* schedulers = new std::vector<Scheduler*>;
    return *schedulers;
  }
  static inline std::mutex mutex;
  Scheduler* scheduler_;
};

inline Schedule schedule_from_environment() {
  if (const char* seed = std::getenv("GPUSIM_SEED"); seed != nullptr && *seed != '\0') {
    return {Order::seeded, environment_number("GPUSIM_SEED", 0)};
  }
  return {environment_number("GPUSIM_REVERSE", 0) != 0 ? Order::reverse : Order::forward, 0};
}

// The block that runs as the k-th.
class BlockOrder {
 public:
  BlockOrder(uint64_t blocks, Schedule schedule) : blocks_(blocks), order_(schedule.order) {
    if (order_ != Order::seeded) return;
    for (uint64_t k = 0; k < blocks; ++k) shuffled_.push_back(k);
    std::shuffle(shuffled_.begin(), shuffled_.end(), Random{schedule.seed});
  }
  uint64_t operator()(uint64_t k) const {
    return order_ == Order::seeded ? shuffled_[k] : order_ == Order::reverse ? blocks_ - 1 - k : k;
  }

 private:
  uint64_t blocks_;
  Order order_;
  std::vector<uint64_t> shuffled_;
};

// ThreadSanitizer keeps here that launches follow one another, whichever host threads they come from.
inline char stream_order = 0;

// Appends where in its library each kernel lies that is launched, once a kernel, to the file that GPUSIM_LAUNCHES names:
// nm says what it is called.
inline void note_launch(const void* kernel) {
  static const char* const file_name = std::getenv("GPUSIM_LAUNCHES");
  if (file_name == nullptr) return;
  static std::mutex mutex;
  static std::set<const void*> known;
  const std::lock_guard lock(mutex);
  Dl_info library;
  if (!known.insert(kernel).second || dladdr(kernel, &library) == 0) return;
  std::FILE* file = std::fopen(file_name, "a");
  if (file == nullptr) fail("GPUSIM_LAUNCHES is %s, which cannot be written", file_name);
  const auto offset = static_cast<const char*>(kernel) - static_cast<const char*>(library.dli_fbase);
  std::fprintf(file, "%tx\n", offset);
  std::fclose(file);
}

inline void run(Launch& launch) {
  note_launch(launch.kernel);
  launch.schedule = schedule_from_environment();
  const uint64_t blocks = launch.blocks();
  race::acquire(&stream_order);
  race::release(&launch.begin);
  if (launch.cooperative) {
    // Threads run in the order of their blocks, which the scheduler reverses or shuffles itself.
    SchedulerLease()->run(launch, 0, static_cast<unsigned>(blocks), [](uint64_t k) { return k; });
  } else {
    // ThreadSanitizer needs no second OS thread to see a race, and its reports repeat with one.
    const uint64_t cores = GPUSIM_TSAN ? 1 : std::max(1u, std::thread::hardware_concurrency());
    const uint64_t workers = std::min(std::max<uint64_t>(environment_number("GPUSIM_THREADS", cores), 1), blocks);
    launch.has_company = workers > 1;
    const BlockOrder order(blocks, launch.schedule);
    std::atomic<uint64_t> next{0};
    const auto work = [&] {
      SchedulerLease scheduler;
      for (uint64_t k; (k = next++) < blocks;) scheduler->run(launch, k, 1, order);
    };
    std::vector<std::thread> others;
    for (uint64_t w = 1; w < workers; ++w) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }
  race::acquire(&launch.end);
  race::release(&stream_order);
}

template <typename... P>
struct KernelCall {
  static_assert((!std::is_reference_v<P> && ...), "gpusim: a kernel takes its arguments by value");
  static_assert((std::is_trivially_copyable_v<P> && ...), "gpusim: a kernel's arguments are copied as bytes");
  static_assert((sizeof(P) + ... + 0) <= 4096, "gpusim: a kernel's arguments take at most 4096 bytes");

  void (*kernel)(P...);
  std::tuple<std::remove_const_t<P>...> arguments;

  static void call(const void* self) { call(*static_cast<const KernelCall*>(self), std::index_sequence_for<P...>()); }

  // Not std::apply, which would stand in every sanitizer's report with five lines.
  template <size_t... I>
  static void call(const KernelCall& it, std::index_sequence<I...>) {
    it.kernel(std::get<I>(it.arguments)...);
  }
};

template <typename... P>
hipError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, bool cooperative,
                  const std::tuple<std::remove_const_t<P>...>& arguments) {
  if (current != nullptr) fail("a kernel launches a kernel, which the simulator does not model");
  const KernelCall<P...> kernel_call{kernel, arguments};
  Launch it;
  it.grid = grid;
  it.block = block;
  it.shared_bytes = shared_bytes;
  it.cooperative = cooperative;
  it.kernel = reinterpret_cast<const void*>(kernel);
  it.call = KernelCall<P...>::call;
  it.arguments = &kernel_call;
  if (const hipError_t error = noted(refusal(it)); error != hipSuccess) return error;
  run(it);
  return hipSuccess;
}

// The arguments as hipLaunchKernel gets them: the address of each.
template <typename... P, size_t... I>
std::tuple<std::remove_const_t<P>...> unpack(void (*)(P...), void** arguments, std::index_sequence<I...>) {
  return {*static_cast<std::remove_const_t<P>*>(arguments[I])...};
}

}  // namespace gpusim

#pragma GCC visibility pop
