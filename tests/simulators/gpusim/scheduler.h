// How the scheduler selects threads, and how barriers and warp operations wait. Included by gpusim.h.
#pragma once

#include "gpusim.h"

#pragma GCC visibility push(hidden)

namespace gpusim {

template <typename BlockAt>
void Scheduler::run(const Launch& launch, uint64_t first, unsigned count, const BlockAt& block_at) {
  const Unwatched unwatched;
  launch_ = &launch;
  lay_out(launch, count);
  live_ = count * launch.threads();
  ready_.clear();
  round_.clear();
  at_ = 0;
  idle_yields_ = 0;
  random_.state = launch.schedule.seed + first;
  for (unsigned k = 0; k < count; ++k) begin_block(blocks_[k], block_at(first + k));
  prepare_fibers(live_);
  Fiber os_thread;
  os_thread_ = &os_thread;
  os_thread.switch_to(*start(*next(), nullptr));
  current = nullptr;
  own = Own{};
  for (Block& block : blocks_) {
    std::free(static_cast<char*>(block.shared) - shared_margin);
    delete block.order_points;
  }
}

inline void Scheduler::lay_out(const Launch& launch, unsigned count) {
  const unsigned threads = launch.threads();
  const dim3 shape = launch.block;
  if (blocks_.size() == count && shape.x == shape_.x && shape.y == shape_.y && shape.z == shape_.z) return;
  shape_ = shape;
  blocks_ = std::vector<Block>(count);
  threads_ = std::vector<Thread>(size_t{count} * threads);
  for (unsigned k = 0; k < count; ++k) {
    Block& block = blocks_[k];
    block.scheduler = this;
    block.threads = &threads_[size_t{k} * threads];
    block.warps.resize((threads + warp_width - 1) / warp_width);
    for (unsigned i = 0; i < threads; ++i) {
      Thread& thread = block.threads[i];
      thread.index = {i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y)};
      thread.linear = i;
      thread.lane = i % warp_width;
      thread.block = &block;
      thread.warp = &block.warps[i / warp_width];
    }
  }
}

inline void Scheduler::begin_block(Block& block, uint64_t linear) {
  const Launch& launch = *launch_;
  const dim3 grid = launch.grid;
  block.launch = &launch;
  block.index = dim3(static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                     static_cast<unsigned>(linear / (uint64_t{grid.x} * grid.y)));
  block.live = launch.threads();
  block.arrived = block.generation = block.absent = 0;
  block.forming = Votes{};
  // Exactly the requested size, so that AddressSanitizer detects the first byte beyond it; malloc aligns to 16.
  const size_t shared_bytes = std::max<size_t>(launch.shared_bytes, 1);
  block.shared = static_cast<char*>(std::malloc(shared_margin + shared_bytes + shared_margin)) + shared_margin;
  std::memset(block.shared, junk, launch.shared_bytes);
  block.order_points = GPUSIM_TSAN ? new OrderPoints : nullptr;
  for (size_t w = 0; w < block.warps.size(); ++w) {
    const unsigned lanes = std::min<unsigned>(block.live - static_cast<unsigned>(w) * warp_width, warp_width);
    block.warps[w].live = ~uint64_t{0} >> (64 - lanes);
  }
  for (unsigned i = 0; i < block.live; ++i) {
    Thread& thread = block.threads[i];
    thread.state = State::unstarted;
    thread.fenced = Scope::none;
    thread.unchecked = 1;
    if (GPUSIM_TSAN) thread.polled.clear();
    ready_.push_back(&thread);
  }
}

// ThreadSanitizer distinguishes GPU threads by their fibers. A fiber created by a GPU thread would be ordered after it,
// so all are created here; they are used in turn, so that each is reused as late as possible.
inline void Scheduler::prepare_fibers(size_t threads) {
  if (!GPUSIM_TSAN) return;
  constexpr size_t most = 7000;  // GCC's runtime supports 8128 threads at a time
  constexpr size_t usual = 512;  // each costs 0.8 MB
  if (threads > most) {
    fail("ThreadSanitizer can tell %zu GPU threads apart, and a block or a cooperative grid here has %zu. Use fewer: "
         "GPUSIM_MULTIPROCESSORS=1 makes cooperative grids smaller.", most, threads);
  }
  const size_t wanted = std::max<size_t>(threads, std::min<uint64_t>(usual, launch_->blocks() * launch_->threads()));
  while (fibers_.size() < wanted) {
    fibers_.push_back(std::make_unique<Fiber>(fiber_main));
    spare_.push_back(fibers_.back().get());
  }
}

inline void Scheduler::make_current(Thread& thread) {
  const char* const shared = static_cast<const char*>(thread.block->shared);
  thread.state = State::running;
  current = &thread;
  own = {thread.fiber->low(), thread.fiber->high(), shared, shared + thread.block->launch->shared_bytes};
}

inline Fiber* Scheduler::start(Thread& thread, Fiber* fiber) {
  if (fiber == nullptr) {
    if (spare_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(fiber_main));
      spare_.push_back(fibers_.back().get());
    }
    fiber = GPUSIM_TSAN ? spare_.front() : spare_.back();
    if (GPUSIM_TSAN) spare_.pop_front();
    else spare_.pop_back();
    fiber->rewind();
  }
  thread.fiber = fiber;
  make_current(thread);
  if (GPUSIM_TSAN) {
    char name[64];
    const dim3& block = thread.block->index;
    std::snprintf(name, sizeof(name), "thread (%u,%u,%u) of block (%u,%u,%u)", thread.index.x, thread.index.y,
                  thread.index.z, block.x, block.y, block.z);
    race::name(fiber->timeline(), name);
  }
  return fiber;
}

// Runs GPU threads one after another on the same stack, as long as each runs to its end.
GPUSIM_NO_TSAN inline void Scheduler::fiber_main() {
  Scheduler& scheduler = *current->block->scheduler;
  Fiber& fiber = *current->fiber;
  fiber.arrived(scheduler.os_thread_);
  for (;;) {
    const Launch& launch = *scheduler.launch_;
    race::acquire(&launch.begin);
    launch.call(launch.arguments);
    race::release(&launch.end);
    Fiber* to = scheduler.retire();
    if (to != &fiber) fiber.switch_to(*to, true);
  }
}

// The current thread has ended: returns the fiber to resume.
inline Fiber* Scheduler::retire() {
  const Unwatched unwatched;
  Thread& thread = *current;
  Block& block = *thread.block;
  Fiber* fiber = thread.fiber;
  thread.state = State::finished;
  leave_meeting(thread);
  --live_;
  --block.live;
  note_progress();
  thread.warp->live &= ~(uint64_t{1} << thread.lane);
  // Neither barriers nor warp operations wait for a thread that has ended.
  if (block.live != 0 && block.arrived == block.live) open_barrier(block);
  if (!thread.warp->forming.empty()) {
    const std::vector<Meeting*> forming = thread.warp->forming;
    for (Meeting* meeting : forming) complete(thread, *meeting);
  }
  Thread* to = next();
  if (to != nullptr && to->state == State::unstarted && !GPUSIM_TSAN) return start(*to, fiber);
  Fiber* other = to == nullptr ? os_thread_ : to->state == State::unstarted ? start(*to, nullptr) : to->fiber;
  spare_.push_back(fiber);
  if (to != nullptr) make_current(*to);
  return other;
}

inline Thread* Scheduler::next() {
  for (;;) {
    if (at_ < round_.size()) return round_[at_++];
    if (live_ == 0) return nullptr;
    start_round();
  }
}

// All ready threads run once, in the requested order.
inline void Scheduler::start_round() {
  if (ready_.empty()) stuck("no GPU thread can move: a barrier or a warp operation waits for threads that do not come");
  if (progress_ != progress_seen_) {
    progress_seen_ = progress_;
    idle_yields_ = 0;
  } else {
    check_stall();
  }
  round_.swap(ready_);
  ready_.clear();
  at_ = 0;
  arrange();
}

inline void Scheduler::arrange() {
  if (!std::is_sorted(round_.begin(), round_.end())) std::sort(round_.begin(), round_.end());
  const Order order = launch_->schedule.order;
  if (order == Order::reverse) std::reverse(round_.begin(), round_.end());
  if (order == Order::seeded) std::shuffle(round_.begin(), round_.end(), random_);
}

// In this round all threads only poll memory. Another OS thread may be about to change it, but the wait must end.
inline void Scheduler::check_stall() {
  constexpr uint64_t patience = 4'000'000;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  if (idle_yields_ == 0) idle_since_ = now();
  idle_yields_ += ready_.size();
  if (idle_yields_ < patience) return;
  if (!launch_->has_company || now() - idle_since_ > std::chrono::seconds(10)) {
    stuck("the GPU threads that can move only poll memory that nobody changes");
  }
  idle_yields_ = 1;
}

inline void Scheduler::make_ready(Thread& thread) {
  thread.state = State::ready;
  ready_.push_back(&thread);
}

// Runs other threads until this one has been made ready and its turn has come.
inline void Scheduler::suspend(Thread& thread) {
  Thread* to = next();
  if (to == &thread) {
    thread.state = State::running;
    return;
  }
  Fiber* fiber = to->state == State::unstarted ? start(*to, nullptr) : to->fiber;
  make_current(*to);
  thread.fiber->switch_to(*fiber);
}

inline void Scheduler::yield(Thread& thread, const char* operation, Site site) {
  const Unwatched unwatched;
  thread.operation = operation;
  thread.site = site;
  make_ready(thread);
  suspend(thread);
}

inline bool same_place(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

inline Votes Scheduler::barrier(Thread& thread, const char* operation, bool vote, Site site) {
  Block& block = *thread.block;
  const unsigned generation = block.generation;
  char* order = GPUSIM_TSAN ? &block.order_points->barrier[generation % 2] : nullptr;
  race::release(order);
  {
    const Unwatched unwatched;
    if (block.arrived++ == 0) {
      block.operation = operation;
      block.site = site;
    }
    thread.operation = operation;
    thread.site = site;
    thread.state = State::at_barrier;
    if (block.operation != operation || !same_place(block.site, site)) {
      stuck("a divergent barrier: threads of a block wait at different places");
    }
    block.forming.any |= vote;
    block.forming.all &= vote;
    block.forming.count += vote;
    if (block.arrived == block.live) open_barrier(block);
    suspend(thread);
  }
  race::acquire(order);
  return block.result[generation % 2];
}

inline void Scheduler::open_barrier(Block& block) {
  if (launch_->all_meet && block.live + block.absent != block.launch->threads()) {
    stuck("a barrier that threads which have ended do not reach");
  }
  block.result[block.generation++ % 2] = block.forming;
  block.forming = Votes{};
  block.arrived = 0;
  note_progress();
  const unsigned threads = block.launch->threads();
  for (unsigned i = 0; i < threads; ++i) {
    if (block.threads[i].state == State::at_barrier) make_ready(block.threads[i]);
  }
}

inline Meeting& Scheduler::meet(Thread& thread, uint64_t mask, const char* operation, const void* offer, size_t bytes,
                                bool vote, bool fences, Site site) {
  const Unwatched unwatched;
  leave_meeting(thread);
  thread.operation = operation;
  thread.site = site;
  mask &= full_mask;
  const uint64_t bit = uint64_t{1} << thread.lane;
  if ((mask & bit) == 0) stuck("a lane calls a warp operation with a mask that does not name it");
  std::vector<Meeting*>& forming = thread.warp->forming;
  auto found = std::find_if(forming.begin(), forming.end(), [&](Meeting* m) { return m->mask == mask; });
  if (found == forming.end()) {
    if (spare_meetings_.empty()) spare_meetings_.push_back(new Meeting);
    Meeting& fresh = *spare_meetings_.back();
    spare_meetings_.pop_back();
    fresh.mask = mask;
    fresh.arrived = fresh.votes = 0;
    fresh.operation = operation;
    fresh.site = site;
    fresh.bytes = bytes;
    found = forming.insert(forming.end(), &fresh);
  }
  Meeting& meeting = **found;
  thread.meeting = &meeting;
  thread.offer = offer;
  thread.state = State::in_meeting;
  if (meeting.operation != operation || meeting.bytes != bytes || !same_place(meeting.site, site)) {
    stuck("a divergent warp operation: lanes of a warp meet in different operations");
  }
  meeting.arrived |= bit;
  if (vote) meeting.votes |= bit;
  if (fences) race::release(&meeting.mask);
  complete(thread, meeting);
  suspend(thread);
  if (fences) race::acquire(&meeting.mask);
  return meeting;
}

// Resumes the lanes of a meeting, if all live lanes of its mask have arrived.
inline void Scheduler::complete(Thread& thread, Meeting& meeting) {
  Warp& warp = *thread.warp;
  if ((meeting.mask & warp.live & ~meeting.arrived) != 0) return;
  meeting.data.assign(warp_width * meeting.bytes, junk);
  Thread* lanes = &thread - thread.lane;
  for (uint64_t left = meeting.arrived; left != 0; left &= left - 1) {
    const int lane = __builtin_ctzll(left);
    if (meeting.bytes != 0) std::memcpy(&meeting.data[lane * meeting.bytes], lanes[lane].offer, meeting.bytes);
    make_ready(lanes[lane]);
  }
  meeting.readers = static_cast<unsigned>(__builtin_popcountll(meeting.arrived));
  warp.forming.erase(std::find(warp.forming.begin(), warp.forming.end(), &meeting));
  note_progress();
}

inline void Scheduler::leave_meeting(Thread& thread) {
  if (thread.meeting == nullptr) return;
  if (--thread.meeting->readers == 0) {
    // Freeing it makes ThreadSanitizer forget the order that it established between these lanes.
    if (GPUSIM_TSAN) delete thread.meeting;
    else spare_meetings_.push_back(thread.meeting);
  }
  thread.meeting = nullptr;
}

}  // namespace gpusim

#pragma GCC visibility pop

#include "report.h"
