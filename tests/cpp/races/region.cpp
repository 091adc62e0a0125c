#include "region.h"

#include <algorithm>
#include <latch>
#include <thread>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/team.h"

namespace fourfold::races {

thread_local Region region;

namespace {
thread_local int64_t shares_of_last = 0;
}

int64_t last_shares() { return shares_of_last; }

}  // namespace fourfold::races

namespace fourfold::cpu {

using races::Region;
using races::region;

void parallel_for(int64_t begin, int64_t end, int64_t, void (*body)(void*, int64_t, int64_t), void* context) {
  const Region here = region;
  const int64_t count = end - begin;
  const int64_t threads = std::min(here.threads, count);
  const int64_t prompt = std::min(here.prompt, threads);
  races::shares_of_last = count;
  std::latch started(prompt);
  std::latch done(prompt);
  const auto run = [&](int64_t thread) {
    region = here;
    if (thread < prompt) {
      started.arrive_and_wait();
    } else {
      done.wait();
    }
    body(context, begin + count * thread / threads, begin + count * (thread + 1) / threads);
    if (thread < prompt) done.count_down();
  };
  std::vector<std::thread> others;
  for (int64_t thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  run(0);
  for (std::thread& other : others) other.join();
}

int64_t usable_threads() { return region.shares; }

// Prompt threads join the team even on a busy machine.
int64_t wake_up_microseconds() { return region.prompt < region.threads ? 100'000 : 60'000'000; }

}  // namespace fourfold::cpu
