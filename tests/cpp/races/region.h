// The parallel regions that the engine runs in here, and what it is told of the machine. They take the place of
// cpp/ops/parallel.cpp and cpp/cpu/scheduling.cpp.
#pragma once

#include <cstdint>

namespace fourfold::races {

// How the regions run that a thread begins.
struct Region {
  int64_t shares = 1;   // the threads that the engine is told to be worth asking for
  int64_t threads = 1;  // those that run a region, with several shares each where they are fewer than the shares
  int64_t prompt = 1;   // those that are there when it begins; the others come when these have done it all
};

extern thread_local Region region;

// The shares of the last region that this thread began.
int64_t last_shares();

}  // namespace fourfold::races
