#include "cpu/team.h"

#include <chrono>
#include <thread>

#include "cpu/parallel.h"

namespace fourfold::cpu {

struct Team {
  static constexpr uint64_t closed = uint64_t(1) << 63;
  static constexpr uint64_t one_member = uint64_t(1) << 32;  // the low half counts shares

  int64_t shares;
  std::atomic<uint64_t> joined{0};
  alignas(64) std::atomic<uint64_t> arrived{0};

  int64_t members() const { return static_cast<int64_t>((joined.load(std::memory_order_acquire) & ~closed) >> 32); }
};

namespace {

using Clock = std::chrono::steady_clock;

// Some microseconds, the typical difference between members' times for a step. Yielding is cheap on an idle core; on a
// busy one, spinning longer delays the member that is waited for.
constexpr int spins = 200;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins briefly, because usually all members run at once; then yields, because the missing member may need this core.
template <typename F>
void wait_until(const F& done) {
  for (int k = 0; k < spins; ++k) {
    if (done()) return;
    pause();
  }
  while (!done()) std::this_thread::yield();
}

// This thread's index in the team, or -1 if the team has started without it.
int64_t join(Team& team, int64_t shares) {
  uint64_t before = team.joined.load(std::memory_order_relaxed);
  do {
    if (before & Team::closed) return -1;
  } while (!team.joined.compare_exchange_weak(
      before, before + Team::one_member + static_cast<uint64_t>(shares), std::memory_order_acq_rel));
  const auto index = static_cast<int64_t>(before >> 32);
  const auto complete = [&] {
    const uint64_t now = team.joined.load(std::memory_order_acquire);
    return (now & Team::closed) != 0 || static_cast<int64_t>(now & 0xffffffff) == team.shares;
  };
  if (index == 0) {
    const auto deadline = Clock::now() + std::chrono::microseconds(wake_up_microseconds());
    wait_until([&] { return complete() || Clock::now() > deadline; });
    team.joined.fetch_or(Team::closed, std::memory_order_acq_rel);
  } else {
    wait_until([&] { return (team.joined.load(std::memory_order_acquire) & Team::closed) != 0; });
  }
  return index;
}

}  // namespace

int64_t Member::members() const { return team_.members(); }
int64_t Member::begin() const { return team_.shares * index_ / team_.members(); }
int64_t Member::end() const { return team_.shares * (index_ + 1) / team_.members(); }

void Member::wait() {
  const auto all = static_cast<uint64_t>(team_.members());
  if (all == 1) return;
  const uint64_t target = ++waits_ * all;
  team_.arrived.fetch_add(1, std::memory_order_acq_rel);
  wait_until([&] { return team_.arrived.load(std::memory_order_acquire) >= target; });
}

void run_team(int64_t shares, void (*body)(void*, Member&), void* context) {
  Team team{.shares = shares};
  if (shares <= 1) {
    team.joined = Team::closed | (Team::one_member + 1);
    Member alone(team, 0);
    body(context, alone);
    return;
  }
  parallel(shares, 1, [&](int64_t begin, int64_t end) {
    const int64_t index = join(team, end - begin);
    if (index < 0) return;
    Member member(team, index);
    body(context, member);
  });
}

}  // namespace fourfold::cpu
