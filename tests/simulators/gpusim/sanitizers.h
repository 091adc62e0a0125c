// The simulator's calls of AddressSanitizer and ThreadSanitizer. Without them everything here is empty.
#pragma once

#ifndef GPUSIM_CHECKED  // a build whose accesses checks.cpp checks
#define GPUSIM_CHECKED 0
#endif

#if defined(__SANITIZE_ADDRESS__) && !GPUSIM_CHECKED
#define GPUSIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPUSIM_ASAN 1
#endif
#endif
#ifndef GPUSIM_ASAN
#define GPUSIM_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#define GPUSIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GPUSIM_TSAN 1
#endif
#endif
#ifndef GPUSIM_TSAN
#define GPUSIM_TSAN 0
#endif

#if GPUSIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if GPUSIM_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

// ThreadSanitizer keeps a call stack per timeline. A function that never returns because it switches away must not be
// on it.
#define GPUSIM_NO_TSAN __attribute__((no_sanitize("thread")))

// For functions that read or update the simulator's data on behalf of a kernel.
#if GPUSIM_CHECKED
#define GPUSIM_NOT_CHECKED __attribute__((no_sanitize("kernel-address")))
#else
#define GPUSIM_NOT_CHECKED GPUSIM_NO_TSAN
#endif

#pragma GCC visibility push(hidden)

// Each GPU thread is a timeline (ThreadSanitizer's fiber), switched without synchronisation, so that two GPU threads
// are ordered only where the GPU orders them: by release and acquire.
namespace gpusim::race {

using Timeline = void*;

#if GPUSIM_TSAN
inline Timeline new_timeline() { return __tsan_create_fiber(0); }
inline Timeline this_timeline() { return __tsan_get_current_fiber(); }
GPUSIM_NO_TSAN inline void switch_to(Timeline timeline) {
  __tsan_switch_to_fiber(timeline, __tsan_switch_to_fiber_no_sync);
}
inline void name(Timeline timeline, const char* name) { __tsan_set_fiber_name(timeline, name); }
inline void release(void* where) { __tsan_release(where); }
inline void acquire(void* where) { __tsan_acquire(where); }

class Unwatched {
 public:
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};
#else
inline Timeline new_timeline() { return nullptr; }
inline Timeline this_timeline() { return nullptr; }
inline void switch_to(Timeline) {}
inline void name(Timeline, const char*) {}
inline void release(void*) {}
inline void acquire(void*) {}
struct Unwatched {
  Unwatched() {}
};
#endif

}  // namespace gpusim::race

#pragma GCC visibility pop
