#include "services.h"

#include <device_functions.h>
#include <hip/hip_runtime_api.h>

using namespace gpusim;

namespace {

GpusimIndex index_of(const auto& it) { return {it.x, it.y, it.z}; }

// Linked first: files of kernels call these copies of the functions, which are optimised and check nothing, not their own.
template <auto... functions>
struct Emitted {
  [[gnu::used]] static constexpr auto addresses = std::make_tuple(functions...);
};
template struct Emitted<&Scheduler::meet, &Scheduler::barrier, &Scheduler::yield, &block_barrier>;

}  // namespace

GpusimPosition gpusim_service_position() {
  const Unwatched unwatched;
  const Block& block = *current->block;
  return {index_of(current->index), index_of(block.index), index_of(block.launch->block), index_of(block.launch->grid)};
}

void gpusim_service_barrier(std::source_location site) { block_barrier("__syncthreads", 0, site); }

void gpusim_service_exchange(
    const char* operation, const void* mine, size_t bytes, bool fences, void* of_lanes, std::source_location site) {
  const Unwatched unwatched;
  const Meeting& meeting =
      current->block->scheduler->meet(*current, full_mask, operation, mine, bytes, false, fences, site);
  if (bytes > 0) std::memcpy(of_lanes, meeting.data.data(), warp_width * bytes);
}

unsigned gpusim_service_lane() { return lane(); }

void* gpusim_service_shared() {
  const Unwatched unwatched;
  return current->block->shared;
}
