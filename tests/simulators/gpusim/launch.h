// Launches: when they run, and on which OS threads.
#pragma once

#include <dlfcn.h>

#include <set>
#include <thread>
#include <tuple>
#include <type_traits>

#include "streams.h"

#pragma GCC visibility push(hidden)

namespace gpusim {

// Schedulers keep their fibers between launches and are never destroyed.
class SchedulerLease {
 public:
  SchedulerLease() {
    const std::lock_guard lock(mutex);
    if (spare().empty()) spare().push_back(new Scheduler);
    // Use the one with the most stacks: if each grew to a large grid's size, the process would run out of memory
    // mappings.
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

// The block that runs at position k.
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

// ThreadSanitizer's synchronisation object for the order of launches, whichever host threads they come from.
inline char stream_order = 0;

// Appends the offset of each launched kernel in its library, once per kernel, to the file of GPUSIM_LAUNCHES; nm gives
// the names.
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
  launch.schedule = schedule_from_environment();
  const uint64_t blocks = launch.blocks();
  race::acquire(&stream_order);
  race::release(&launch.begin);
  if (launch.cooperative) {
    // Threads are in the order of their blocks; the scheduler itself reverses or shuffles them.
    SchedulerLease()->run(launch, 0, static_cast<unsigned>(blocks), [](uint64_t k) { return k; });
  } else {
    // ThreadSanitizer needs no second OS thread to find a race, and with one its reports are reproducible.
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

  static void call(const void* self) {
    KernelCall it = *static_cast<const KernelCall*>(self);  // a copy on the GPU thread's stack
    call(it, std::index_sequence_for<P...>());
  }

  // Not std::apply, which would add five lines to every sanitizer report.
  template <size_t... I>
  static void call(const KernelCall& it, std::index_sequence<I...>) {
    const InKernel in_kernel;
    it.kernel(std::get<I>(it.arguments)...);
  }
};

template <typename... P>
hipError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, bool cooperative,
                  hipStream_t stream, const std::tuple<std::remove_const_t<P>...>& arguments) {
  if (current != nullptr) fail("a kernel launches a kernel, which the simulator does not model");
  if (stream != nullptr && !streams().knows(stream)) return noted(hipErrorInvalidHandle);
  stream = streams().of(stream);
  Launch it;
  it.grid = grid;
  it.block = block;
  it.shared_bytes = shared_bytes;
  it.cooperative = cooperative;
  it.device = stream->device;
  it.kernel = reinterpret_cast<const void*>(kernel);
  it.call = KernelCall<P...>::call;
  // A kernel is loaded for one device, and a stream belongs to one: CUDA requires both to be the current one.
  if (it.device != current_device) return noted(hipErrorInvalidHandle);
  if (const hipError_t error = noted(refusal(it)); error != hipSuccess) return error;
  note_launch(it.kernel);
  streams().add(stream, [it, kernel_call = KernelCall<P...>{kernel, arguments}]() mutable {
    it.arguments = &kernel_call;
    run(it);
  });
  return hipSuccess;
}

// The arguments in the form of hipLaunchKernel: the address of each.
template <typename... P, size_t... I>
std::tuple<std::remove_const_t<P>...> unpack(void (*)(P...), void** arguments, std::index_sequence<I...>) {
  return {*static_cast<std::remove_const_t<P>*>(arguments[I])...};
}

}  // namespace gpusim

#pragma GCC visibility pop
