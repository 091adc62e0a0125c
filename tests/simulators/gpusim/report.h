// The message when a kernel cannot continue, before the simulator aborts. Included by gpusim.h.
#pragma once

#include <cstdarg>
#include <string>

#include "gpusim.h"
#include "symbols.h"

#pragma GCC visibility push(hidden)

namespace gpusim {

[[noreturn]] inline void fail(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  char sentence[4096];
  std::vsnprintf(sentence, sizeof(sentence), format, values);
  va_end(values);
  std::fprintf(stderr, "gpusim: %s\n", sentence);  // one call, because several OS threads may fail
  std::abort();
}

// A kernel did something that no device allows.
[[noreturn]] inline void fault(const Thread& thread, const std::string& what) {
  const dim3& block = thread.block->index;
  fail("%s %s, in thread (%u,%u,%u) of block (%u,%u,%u)", kernel_name(thread.block->launch->kernel).c_str(),
       what.c_str(), thread.index.x, thread.index.y, thread.index.z, block.x, block.y, block.z);
}

inline std::string what_it_does(const Thread& thread) {
  const std::string place = std::string(thread.operation) + " at " + thread.site.file_name() + ":" +
                            std::to_string(thread.site.line());
  switch (thread.state) {
    case State::unstarted: return "not run yet";
    case State::finished: return "ended";
    case State::running: return "running";
    case State::ready: return thread.operation[0] == '\0' ? "ready" : "can go on from " + place;
    case State::at_barrier: return "waiting in " + place;
    case State::in_meeting: break;
  }
  char mask[40];
  std::snprintf(mask, sizeof(mask), " with mask 0x%llx", static_cast<unsigned long long>(thread.meeting->mask));
  return "waiting in " + place + mask;
}

inline void describe(const Block& block) {
  constexpr int most_lines = 12;
  std::fprintf(stderr, "  block (%u,%u,%u):\n", block.index.x, block.index.y, block.index.z);
  const unsigned threads = block.launch->threads();
  int lines = 0;
  for (unsigned first = 0, next = 0; first < threads; first = next) {
    const std::string what = what_it_does(block.threads[first]);
    next = first + 1;
    while (next < threads && what_it_does(block.threads[next]) == what) ++next;
    if (++lines > most_lines) {
      std::fprintf(stderr, "    ... and %u more threads\n", threads - first);
      return;
    }
    const uint3 a = block.threads[first].index, z = block.threads[next - 1].index;
    if (next == first + 1) std::fprintf(stderr, "    thread (%u,%u,%u): %s\n", a.x, a.y, a.z, what.c_str());
    else std::fprintf(stderr, "    threads (%u,%u,%u) to (%u,%u,%u): %s\n", a.x, a.y, a.z, z.x, z.y, z.z, what.c_str());
  }
}

inline void Scheduler::stuck(const char* what) const {
  constexpr size_t most_blocks = 4;
  const dim3 grid = launch_->grid, block = launch_->block;
  std::fprintf(stderr, "gpusim: %s\n  in %s, launched with grid (%u,%u,%u) and block (%u,%u,%u)%s\n", what,
               kernel_name(launch_->kernel).c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z,
               launch_->cooperative ? ", cooperative" : "");
  // The block at fault comes first if it is known: the others only wait for it.
  const Block* at_fault = current != nullptr ? current->block : nullptr;
  size_t shown = 0;
  if (at_fault != nullptr) describe(*at_fault);
  for (const Block& other : blocks_) {
    if (&other == at_fault) continue;
    if (++shown == most_blocks) {
      std::fprintf(stderr, "  ... and more blocks, %zu in all\n", blocks_.size());
      break;
    }
    describe(other);
  }
  std::abort();
}

}  // namespace gpusim

#pragma GCC visibility pop
