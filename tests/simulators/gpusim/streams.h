// Streams: a device's work is deferred until something waits for it, as late as a device may run it.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "memory.h"

#pragma GCC visibility push(hidden)

struct ihipStream_t {
  unsigned device = 0;
  bool is_default = false;  // the null stream: it waits for all streams that are not `apart`, and they for it
  bool apart = false;
  std::deque<std::function<void()>> work;
  uint64_t given = 0, done = 0;
  // How much work of other streams must be done before the work added after this point.
  struct After {
    uint64_t before;
    ihipStream_t* stream;
    uint64_t done;
  };
  std::deque<After> after;
};

using hipStream_t = ihipStream_t*;

namespace gpusim {

// ThreadSanitizer would attribute a deferred launch to the thread that waits for it.
constexpr bool deferred = !GPUSIM_TSAN;

class Streams {
 public:
  // The stream of a handle in this host thread; the null handle is its current device's default stream.
  hipStream_t of(hipStream_t handle) {
    const std::lock_guard lock(mutex_);
    return handle != nullptr ? handle : default_of(current_device);
  }

  hipStream_t create(bool apart) {
    const std::lock_guard lock(mutex_);
    auto* stream = new ihipStream_t;
    stream->device = current_device;
    stream->apart = apart;
    all_.push_back(stream);
    return stream;
  }

  bool knows(hipStream_t stream) {
    const std::lock_guard lock(mutex_);
    return std::find(all_.begin(), all_.end(), stream) != all_.end();
  }

  void destroy(hipStream_t stream) {
    synchronize(stream);
    const std::lock_guard lock(mutex_);
    for (ihipStream_t* other : all_) {
      std::erase_if(other->after, [&](const ihipStream_t::After& after) { return after.stream == stream; });
    }
    std::erase(all_, stream);
    delete stream;
  }

  void add(hipStream_t stream, std::function<void()> work) {
    if (!deferred) return work();
    const std::lock_guard lock(mutex_);
    for (ihipStream_t* other : all_) {
      const bool waits = other != stream && other->device == stream->device && other->done != other->given &&
                         ((stream->is_default && !other->apart) || (other->is_default && !stream->apart));
      if (waits) stream->after.push_back({stream->given, other, other->given});
    }
    stream->work.push_back(std::move(work));
    ++stream->given;
  }

  bool is_idle(hipStream_t stream) {
    const std::lock_guard lock(mutex_);
    return stream->done == stream->given;
  }

  void synchronize(hipStream_t stream) {
    const std::lock_guard running(running_);
    run_until(stream, count(stream));
  }

  // The last stream first, which code that confuses two streams doesn't expect.
  void synchronize_device(unsigned device) {
    const std::lock_guard running(running_);
    std::vector<hipStream_t> streams;
    {
      const std::lock_guard lock(mutex_);
      streams.assign(all_.rbegin(), all_.rend());
    }
    for (hipStream_t stream : streams) {
      if (stream->device == device) run_until(stream, count(stream));
    }
  }

  void synchronize_all() {
    for (unsigned device = device_count(); device-- > 0;) synchronize_device(device);
  }

 private:
  uint64_t count(hipStream_t stream) {
    const std::lock_guard lock(mutex_);
    return stream->given;
  }

  void run_until(hipStream_t stream, uint64_t end) {
    for (;;) {
      std::unique_lock lock(mutex_);
      if (stream->done >= end) return;
      if (!stream->after.empty() && stream->after.front().before <= stream->done) {
        const ihipStream_t::After after = stream->after.front();
        stream->after.pop_front();
        lock.unlock();
        run_until(after.stream, after.done);
        continue;
      }
      const std::function<void()> work = std::move(stream->work.front());
      stream->work.pop_front();
      lock.unlock();
      work();
      lock.lock();
      ++stream->done;
    }
  }

  hipStream_t default_of(unsigned device) {
    for (ihipStream_t* stream : all_) {
      if (stream->is_default && stream->device == device) return stream;
    }
    auto* stream = new ihipStream_t;
    stream->device = device;
    stream->is_default = true;
    all_.push_back(stream);
    return stream;
  }

  std::mutex mutex_, running_;
  std::vector<hipStream_t> all_;
};

inline Streams& streams() {
  static auto* const it = new Streams;
  return *it;
}

}  // namespace gpusim

// For ctypes: until it returns, launches may not have run.
extern "C" __attribute__((used, visibility("default"))) inline void gpusim_synchronize() {
  gpusim::streams().synchronize_all();
}

#pragma GCC visibility pop
