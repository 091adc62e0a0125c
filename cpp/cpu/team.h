// A group of threads inside one parallel region, with a barrier: for loops whose steps depend on each other.
//
// Work is cut into shares, as many as threads are asked for; results may depend on the shares and never on how many
// threads come. A thread that torch's pool does not start, or not in time, is done without: a member then holds several
// shares. So nobody waits for a thread that may never come, whatever runs the region (OpenMP with fewer threads than
// asked for, a nested region, a pool of torch's own).
#pragma once

#include <atomic>
#include <cstdint>

namespace fourfold::cpu {

struct Team;

// One thread's part in a team: shares [begin, end).
class Member {
 public:
  Member(Team& team, int64_t index) : team_(team), index_(index) {}

  int64_t begin() const;
  int64_t end() const;
  int64_t members() const;
  // Returns once every member has called it as often. What members wrote before it can be read after it.
  void wait();

 private:
  Team& team_;
  int64_t index_;
  uint64_t waits_ = 0;
};

// Runs body(context, member) on up to `shares` threads and returns when all are done. It must not throw.
void run_team(int64_t shares, void (*body)(void*, Member&), void* context);

// How many threads are worth asking for: torch's setting, but no more than this process may run at once.
int64_t usable_threads();

// How long a team waits for a sleeping thread of the pool to wake up, before it begins without it.
int64_t wake_up_microseconds();

// The same for a callable. static: a level's own copy, which no other level can be given.
template <typename F>
static void team(int64_t shares, const F& f) {
  run_team(
      shares, [](void* context, Member& member) { (*static_cast<const F*>(context))(member); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace fourfold::cpu
