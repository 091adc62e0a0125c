// The parallel regions in which the engine runs here, and simulated properties of the machine. They replace
// cpp/ops/parallel.cpp and cpp/cpu/scheduling.cpp.
#pragma once

#include <cstdint>

namespace fourfold::races {

// How the regions that a thread starts run.
struct Region {
  int64_t shares = 1;   // the number of threads that the engine requests
  int64_t threads = 1;  // the threads that run a region, with several shares each if they are fewer
  int64_t prompt = 1;   // the threads that start at once; the others start when these have done all the work
};

extern thread_local Region region;

// The number of shares in the last region that this thread started.
int64_t last_shares();

}  // namespace fourfold::races
