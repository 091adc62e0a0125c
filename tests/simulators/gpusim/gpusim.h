// The core of the GPU simulator: GPU threads are fibers. A scheduler runs them in turn on one OS thread, each until it
// reaches a barrier, a warp operation, a pause or its end. For tests only; needs only C++20 and POSIX.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <source_location>
#include <string_view>
#include <vector>

#include "fiber.h"
#include "vector_types.h"

// Here and in the other headers: each simulated library in a process is a separate device.
#pragma GCC visibility push(hidden)

#define GPUSIM 1

namespace gpusim {

using Site = std::source_location;

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);

inline unsigned warp_width_of_environment() {
  const char* asked = std::getenv("GPUSIM_WARP");
  const std::string_view name = asked == nullptr || *asked == '\0' ? "32" : asked;
  if (name != "32" && name != "64") fail("GPUSIM_WARP is %s, which is neither 32 nor 64", asked);
  return name == "32" ? 32 : 64;
}
inline const unsigned warp_width = warp_width_of_environment();
inline const uint64_t full_mask = ~uint64_t{0} >> (64 - warp_width);
constexpr int junk = 0xCD;
// Around a block's shared memory, so that accesses beside it are recognised.
constexpr size_t shared_margin = GPUSIM_CHECKED ? 4096 : 0;

class Scheduler;
struct Block;

enum class Order { forward, reverse, seeded };

// SplitMix64 for std::shuffle; <random> would take longer to compile than the rest of the simulator.
struct Random {
  using result_type = uint64_t;
  uint64_t state = 0;
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  uint64_t operator()() {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
};

struct Schedule {
  Order order = Order::forward;
  uint64_t seed = 0;
};

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool cooperative = false;
  unsigned device = 0;
  bool has_company = false;  // other OS threads run other blocks of it
  bool all_meet = false;     // whether a barrier must also be reached by threads that have already ended
  Schedule schedule;
  const void* kernel = nullptr;
  void (*call)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  // ThreadSanitizer's synchronisation objects: the launch follows the host's earlier work and precedes its later work.
  mutable char begin = 0, end = 0;

  unsigned threads() const { return block.x * block.y * block.z; }
  uint64_t blocks() const { return uint64_t{grid.x} * grid.y * grid.z; }
};

// Lanes of a warp that meet in one operation. Each offers some bytes; when the last has arrived, all are collected
// here.
struct Meeting {
  uint64_t mask = 0, arrived = 0, votes = 0;
  const char* operation = nullptr;
  Site site;
  size_t bytes = 0;
  unsigned readers = 0;
  std::vector<unsigned char> data;  // [warp_width, bytes]; junk for lanes that did not arrive
};

struct Warp {
  uint64_t live = 0;
  std::vector<Meeting*> forming;
};

enum class State : unsigned char { unstarted, ready, running, at_barrier, in_meeting, finished };

// The widest scope that a fence has given to the thread's relaxed atomics.
enum class Scope : unsigned char { none, block, device };

struct Thread {
  uint3 index{};
  unsigned linear = 0, lane = 0;
  State state = State::unstarted;
  Scope fenced = Scope::none;
  unsigned idle_polls = 0;
  unsigned unchecked = 0;  // above 0 while simulator code runs, whose accesses are not checked
  Block* block = nullptr;
  Warp* warp = nullptr;
  Fiber* fiber = nullptr;
  Meeting* meeting = nullptr;  // the last one; the thread may still read its data
  const void* offer = nullptr;
  const char* operation = "";
  Site site;
  std::vector<void*> polled;  // under ThreadSanitizer: addresses read by relaxed atomics since the last fence
};

struct Votes {
  int any = 0, all = 1, count = 0;
};

// Addresses of ThreadSanitizer's synchronisation objects. On the heap, because freeing them resets ThreadSanitizer's
// state.
struct OrderPoints {
  char barrier[2];
  char atomic[256];
};

struct Block {
  Scheduler* scheduler = nullptr;
  const Launch* launch = nullptr;
  dim3 index;
  unsigned live = 0;
  unsigned absent = 0;  // threads beyond a ragged grid
  Thread* threads = nullptr;
  std::vector<Warp> warps;
  void* shared = nullptr;
  OrderPoints* order_points = nullptr;

  unsigned arrived = 0;
  unsigned generation = 0;
  const char* operation = nullptr;
  Site site;
  Votes forming, result[2];  // a thread may reach the next barrier before another has read this one's result
};

inline thread_local Thread* current __attribute__((tls_model("initial-exec"))) = nullptr;

// The memory of `current` alone and of its block: checks.cpp compares each access with these addresses.
struct Own {
  const void *stack = nullptr, *stack_end = nullptr, *shared = nullptr, *shared_end = nullptr;
};
inline thread_local Own own __attribute__((tls_model("initial-exec")));

// While it lives, simulator code runs, which ThreadSanitizer and the checks ignore. GPU threads take turns on one OS
// thread, so sharing the simulator's data is not a race of the kernel.
class Unwatched {
 public:
  GPUSIM_NOT_CHECKED Unwatched() : thread_(current) {
    if (thread_ != nullptr) ++thread_->unchecked;
  }
  GPUSIM_NOT_CHECKED ~Unwatched() {
    if (thread_ != nullptr) --thread_->unchecked;
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  Thread* thread_;
  [[no_unique_address]] race::Unwatched race_;
};

// The opposite: kernel code runs.
class InKernel {
 public:
  GPUSIM_NOT_CHECKED InKernel() { --current->unchecked; }
  GPUSIM_NOT_CHECKED ~InKernel() { ++current->unchecked; }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

// The bytes that every lane of the warp offered to an exchange; valid until the lane's next warp operation.
struct __attribute__((visibility("default"))) WarpView {
  const unsigned char* data;
  size_t bytes;
  uint64_t lanes;  // those that arrived

  const void* operator[](unsigned lane) const { return data + lane * bytes; }

  template <typename T>
  T get(unsigned lane) const {
    const Unwatched unwatched;
    T value;
    std::memcpy(&value, data + lane * bytes, sizeof(T));
    return value;
  }
};

class Scheduler {
 public:
  // Runs the blocks at positions [first, first + count) of the order `block_at`, all of them resident together.
  template <typename BlockAt>
  void run(const Launch& launch, uint64_t first, unsigned count, const BlockAt& block_at);

  Votes barrier(Thread& thread, const char* operation, bool vote, Site site);
  Meeting& meet(Thread& thread, uint64_t mask, const char* operation, const void* offer, size_t bytes, bool vote,
                bool fences, Site site);
  void yield(Thread& thread, const char* operation, Site site);
  void note_progress() { ++progress_; }
  size_t fibers() const { return fibers_.size(); }

 private:
  static void fiber_main();
  void lay_out(const Launch& launch, unsigned count);
  void begin_block(Block& block, uint64_t linear);
  void prepare_fibers(size_t threads);
  static void make_current(Thread& thread);
  Fiber* start(Thread& thread, Fiber* fiber);
  Fiber* retire();
  Thread* next();
  void start_round();
  void arrange();
  void check_stall();
  void suspend(Thread& thread);
  void make_ready(Thread& thread);
  void open_barrier(Block& block);
  void complete(Thread& thread, Meeting& meeting);
  void leave_meeting(Thread& thread);
  [[noreturn]] void stuck(const char* what) const;  // in report.h

  const Launch* launch_ = nullptr;
  dim3 shape_{0, 0, 0};
  std::vector<Thread> threads_;
  std::vector<Block> blocks_;
  std::vector<Thread*> ready_, round_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::deque<Fiber*> spare_;
  std::vector<Meeting*> spare_meetings_;
  Fiber* os_thread_ = nullptr;
  size_t at_ = 0;
  unsigned live_ = 0;
  Random random_;
  uint64_t progress_ = 0, progress_seen_ = 0, idle_yields_ = 0;
  std::chrono::steady_clock::time_point idle_since_;
};

// Lets other GPU threads run: call it in every loop that waits for memory to change.
inline void yield(Site site = Site::current()) {
  const Unwatched unwatched;
  current->block->scheduler->yield(*current, "a pause", site);
}

inline void pause(Site site = Site::current()) { yield(site); }

// Offers `bytes` bytes to the warp, and returns the bytes of every lane: one step, for matrix instructions.
inline WarpView warp_exchange(const void* mine, size_t bytes, Site site = Site::current()) {
  const Unwatched unwatched;
  const Meeting& meeting =
      current->block->scheduler->meet(*current, full_mask, "warp_exchange", mine, bytes, false, false, site);
  return {meeting.data.data(), bytes, meeting.arrived};
}

// The block's dynamic shared memory, converted to a pointer of the declared type.
struct SharedMemory {
  template <typename T>
  operator T*() const {
    const Unwatched unwatched;
    return static_cast<T*>(current->block->shared);
  }
};

}  // namespace gpusim

#pragma GCC visibility pop

#include "scheduler.h"
