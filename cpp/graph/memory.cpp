#include "memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../system/system.h"

namespace fourfold::graph {
namespace {

using Clock = std::chrono::steady_clock;

// glibc's least mmap threshold (mallopt(3)). Served by us, larger blocks no longer raise its threshold for returning the
// end of its heap, so it would return smaller ones in each call.
constexpr size_t smallest = size_t{1} << 17;
constexpr auto longest = std::chrono::seconds(30);
constexpr size_t most_blocks = 256;  // a model whose sizes change in each call would fill the cache with blocks that fit nothing

struct Block {
  void* data;
  size_t size;
  Clock::time_point freed;
};

class KeptBlocks {
 public:
  // Null if none fits.
  void* take(size_t size) {
    const std::scoped_lock lock(mutex_);
    drop_old();
    const auto fits = [&](const Block& block) { return block.size >= size && block.size - size <= size / 8; };
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(), fits);
    if (found == blocks_.rend()) return nullptr;
    void* const data = found->data;
    used_[data] = found->size;
    bytes_ -= found->size;
    blocks_.erase(std::next(found).base());
    return data;
  }

  void add(void* data, size_t size) {
    const std::scoped_lock lock(mutex_);
    used_[data] = size;
  }

  bool has_in_use(void* data) {
    const std::scoped_lock lock(mutex_);
    return used_.count(data) > 0;
  }

  void keep(void* data) {
    const std::scoped_lock lock(mutex_);
    const auto found = used_.find(data);
    blocks_.push_back({data, found->second, Clock::now()});
    bytes_ += found->second;
    used_.erase(found);
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
    while (!blocks_.empty() && (bytes_ > most_ || blocks_.size() > most_blocks || blocks_.front().freed < oldest)) drop_first();
  }

  void drop_first() {
    bytes_ -= blocks_.front().size;
    c10::free_cpu(blocks_.front().data);
    blocks_.erase(blocks_.begin());
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;               // that are free, oldest first
  std::unordered_map<void*, size_t> used_;  // their sizes
  size_t bytes_ = 0;                        // of those that are free
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

void give_back(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  kept().keep(data);
}

// Whether torch's CPU allocator is ours: not if nothing is to be kept, or if another library has installed its own.
bool is_torchs_replaced();

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size < smallest || !is_torchs_replaced()) return c10::GetCPUAllocator()->allocate(size);
    void* data = kept().take(size);
    if (data == nullptr) {
      try {
        data = c10::alloc_cpu(size);
      } catch (const c10::Error&) {
        if (kept().release() == 0) throw;
        data = c10::alloc_cpu(size);
      }
      kept().add(data, size);
    }
    c10::profiledCPUMemoryReporter().New(data, size);
    return {data, data, give_back, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

thread_local int running = 0;  // graphs
c10::Allocator* torchs_allocator = nullptr;  // before ours
c10::Allocator* ours = nullptr;

// oneDNN allocates and frees by address alone.
void free_either(void* data) { kept().has_in_use(data) ? give_back(data) : torchs_allocator->raw_deleter()(data); }

// torch's allocator, but for what operators allocate within a graph.
class OperatorAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    return (running > 0 && size >= smallest ? allocator_of_results() : torchs_allocator)->allocate(size);
  }

  c10::DeleterFnPtr raw_deleter() const override { return free_either; }
  void copy_data(void* to, const void* from, size_t size) const override { torchs_allocator->copy_data(to, from, size); }
};

bool is_torchs_replaced() { return ours != nullptr && c10::GetCPUAllocator() == ours; }

}  // namespace

OperatorsReuseMemory::OperatorsReuseMemory() { ++running; }
OperatorsReuseMemory::~OperatorsReuseMemory() { --running; }

c10::Allocator* allocator_of_results() {
  static ResultAllocator allocator;
  return &allocator;
}

void keep_at_most(size_t bytes) {
  kept().limit(bytes);
  if (bytes == 0 || ours != nullptr || c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
  torchs_allocator = c10::GetCPUAllocator();
  c10::SetCPUAllocator(ours = new OperatorAllocator);
}

size_t release_kept_memory() { return kept().release(); }

}  // namespace fourfold::graph
