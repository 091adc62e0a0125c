// A team of threads inside one parallel region, with a barrier: for loops whose steps depend on each other.
//
// Work is split into as many shares as threads are requested; results may depend on the shares, but never on the number
// of threads. If torch's pool doesn't start a thread, or not in time, the team runs without it, and a member has
// several shares. So a team never waits for a thread that may not start, for any implementation of the region (OpenMP
// with fewer threads than requested, a nested region, torch's own pool).
#pragma once

#include <atomic>
#include <cstdint>

namespace fourfold::cpu {

struct Team;

// One thread of a team, with the shares [begin, end).
class Member {
 public:
  Member(Team& team, int64_t index) : team_(team), index_(index) {}

  int64_t begin() const;
  int64_t end() const;
  int64_t members() const;
  // A barrier of all members. Writes before it are visible after it.
  void wait();

 private:
  Team& team_;
  int64_t index_;
  uint64_t waits_ = 0;
};

// Runs body(context, member) on up to `shares` threads and returns when all are done. It must not throw.
void run_team(int64_t shares, void (*body)(void*, Member&), void* context);

// The number of threads to request: torch's setting, but no more than this process may run at once.
int64_t usable_threads();

// How long a team waits for sleeping threads of the pool before it starts without them.
int64_t wake_up_microseconds();

// run_team() for a callable. static, so that the linker can't share one level's copy with another.
template <typename F>
static void team(int64_t shares, const F& f) {
  run_team(
      shares, [](void* context, Member& member) { (*static_cast<const F*>(context))(member); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace fourfold::cpu
