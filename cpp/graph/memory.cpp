#include "memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

#include "../system/system.h"

namespace fourfold::graph {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t mebibyte = size_t{1} << 20;
constexpr size_t smallest = 32 * mebibyte;  // glibc's largest mmap threshold (mallopt(3))
constexpr auto longest = std::chrono::seconds(30);

struct Block {
  void* data;
  size_t size;
  Clock::time_point freed;
};

class KeptBlocks {
 public:
  // Null if none fits.
  Block* take(size_t size) {
    const std::scoped_lock lock(mutex_);
    drop_old();
    const auto fits = [&](const Block* block) { return block->size >= size && block->size - size <= size / 8; };
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(), fits);
    if (found == blocks_.rend()) return nullptr;
    Block* const block = *found;
    blocks_.erase(std::next(found).base());
    bytes_ -= block->size;
    return block;
  }

  void keep(Block* block) {
    const std::scoped_lock lock(mutex_);
    block->freed = Clock::now();
    blocks_.push_back(block);
    bytes_ += block->size;
    drop_old();
  }

  void limit(size_t bytes) {
    const std::scoped_lock lock(mutex_);
    most_ = bytes;
    drop_old();
  }

  size_t release() {
    const std::scoped_lock lock(mutex_);
    const size_t before = bytes_;
    while (!blocks_.empty()) drop_first();
    return before;
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void drop_old() {
    const auto oldest = Clock::now() - longest;
    while (!blocks_.empty() && (bytes_ > most_ || blocks_.front()->freed < oldest)) drop_first();
  }

  void drop_first() {
    bytes_ -= blocks_.front()->size;
    c10::free_cpu(blocks_.front()->data);
    delete blocks_.front();
    blocks_.erase(blocks_.begin());
  }

  std::mutex mutex_;
  std::vector<Block*> blocks_;  // oldest first
  size_t bytes_ = 0;
  size_t most_ = 0;
};

// Never destroyed: tensors may be freed while the process exits.
KeptBlocks& kept() {
  static KeptBlocks* const blocks = [] {
    auto* const made = new KeptBlocks;
    system::at_fork([] { kept().lock(); }, [] { kept().unlock(); }, [] { kept().unlock(); });
    return made;
  }();
  return *blocks;
}

void give_back(void* context) {
  auto* const block = static_cast<Block*>(context);
  c10::profiledCPUMemoryReporter().Delete(block->data);
  kept().keep(block);
}

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size < smallest) return c10::GetCPUAllocator()->allocate(size);
    Block* block = kept().take(size);
    if (block == nullptr) {
      void* data = nullptr;
      try {
        data = c10::alloc_cpu(size);
      } catch (const c10::Error&) {
        if (kept().release() == 0) throw;
        data = c10::alloc_cpu(size);
      }
      block = new Block{data, size, {}};
    }
    c10::profiledCPUMemoryReporter().New(block->data, size);
    return {block->data, block, give_back, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

}  // namespace

c10::Allocator* allocator_of_results() {
  static ResultAllocator allocator;
  return &allocator;
}

void keep_at_most(size_t bytes) { kept().limit(bytes); }

size_t release_kept_memory() { return kept().release(); }

}  // namespace fourfold::graph
