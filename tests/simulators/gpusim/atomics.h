// Atomic operations, fences and loads with a cache hint.
#pragma once

#include <concepts>

#include "gpusim.h"

#pragma GCC visibility push(hidden)

#define __HIP_MEMORY_SCOPE_SINGLETHREAD 1
#define __HIP_MEMORY_SCOPE_WAVEFRONT 2
#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#define __HIP_MEMORY_SCOPE_AGENT 4
#define __HIP_MEMORY_SCOPE_SYSTEM 5

namespace gpusim {

// ThreadSanitizer's synchronisation object for operations of block scope on this address: one per block, because they
// order nothing between two blocks.
inline void* within_block(const void* address) {
  OrderPoints& points = *current->block->order_points;
  return &points.atomic[(reinterpret_cast<uintptr_t>(address) >> 2) % sizeof(points.atomic)];
}

inline void release(void* address, Scope scope) {
  race::release(within_block(address));
  if (scope == Scope::device) race::release(address);
}

inline void acquire(void* address, Scope scope) {
  race::acquire(within_block(address));
  if (scope == Scope::device) race::acquire(address);
}

// An atomic operation's memory order for ThreadSanitizer. The operation itself is relaxed: only this counts.
class Ordered {
 public:
  Ordered(const void* address, int order, int scope)
      : address_(const_cast<void*>(address)),
        order_(order),
        scope_(scope >= __HIP_MEMORY_SCOPE_AGENT ? Scope::device : Scope::block) {
    if (!GPUSIM_TSAN) return;
    if (order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST) {
      gpusim::release(address_, scope_);
    } else if (current->fenced != Scope::none) {
      // A relaxed operation after a fence publishes the writes before the fence. It also publishes the writes between
      // the two here, which a GPU doesn't guarantee.
      gpusim::release(address_, std::min(scope_, current->fenced));
    }
  }
  ~Ordered() {
    if (!GPUSIM_TSAN) return;
    if (order_ == __ATOMIC_ACQUIRE || order_ == __ATOMIC_ACQ_REL || order_ == __ATOMIC_SEQ_CST) {
      gpusim::acquire(address_, scope_);
      return;
    }
    const Unwatched unwatched;
    std::vector<void*>& polled = current->polled;
    if (std::find(polled.begin(), polled.end(), address_) == polled.end()) polled.push_back(address_);
  }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;

 private:
  void* address_;
  int order_;
  Scope scope_;
};

constexpr int memory_order = GPUSIM_TSAN ? __ATOMIC_RELAXED : __ATOMIC_SEQ_CST;

inline void fence(Scope scope) {
  if (!GPUSIM_TSAN) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return;
  }
  const Unwatched unwatched;
  for (void* address : current->polled) gpusim::acquire(address, scope);
  current->polled.clear();
  current->fenced = std::max(current->fenced, scope);
}

// A loop that waits without a yield would block all other threads forever: many operations that change nothing count as
// a yield.
inline void count_poll(Site site) {
  const Unwatched unwatched;
  if (++current->idle_polls % 256 == 0) current->block->scheduler->yield(*current, "a loop of atomics", site);
}

inline void note_change() {
  const Unwatched unwatched;
  current->block->scheduler->note_progress();
}

template <typename T>
T atomic_load(const T* address, int order, int scope, Site site) {
  T value;
  {
    const Ordered ordered(address, order, scope);
    __atomic_load(address, &value, memory_order);
  }
  count_poll(site);
  return value;
}

template <typename T>
void atomic_store(T* address, T value, int order, int scope) {
  {
    const Ordered ordered(address, order, scope);
    __atomic_store(address, &value, memory_order);
  }
  note_change();
}

// Returns the old value; `change` returns the new one.
template <typename T, typename F>
T atomic_update(T* address, int order, int scope, Site site, F change) {
  T old, fresh;
  {
    const Ordered ordered(address, order, scope);
    __atomic_load(address, &old, memory_order);
    do {
      fresh = change(old);
    } while (!__atomic_compare_exchange(address, &old, &fresh, false, memory_order, memory_order));
  }
  if (std::memcmp(&old, &fresh, sizeof(T)) == 0) count_poll(site);
  else note_change();
  return old;
}

template <typename T, typename F>
T relaxed_update(T* address, Site site, F change) {
  return atomic_update(address, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, site, change);
}

template <typename T, typename... Types>
concept OneOf = (std::same_as<T, Types> || ...);

template <typename T>
concept AtomicInteger = OneOf<T, int, unsigned, unsigned long long>;

// Integers wrap around; unsigned arithmetic defines that.
template <typename T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

}  // namespace gpusim

template <gpusim::OneOf<int, unsigned, unsigned long long, float, double> T>
T atomicAdd(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return gpusim::wrapping_add(old, value); });
}

template <gpusim::OneOf<int, unsigned> T>
T atomicSub(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return static_cast<T>(unsigned(old) - unsigned(value)); });
}

template <gpusim::OneOf<int, unsigned, long long, unsigned long long> T>
T atomicMax(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return old < value ? value : old; });
}

template <gpusim::OneOf<int, unsigned, long long, unsigned long long> T>
T atomicMin(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return value < old ? value : old; });
}

template <gpusim::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value,
            gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return old == expected ? value : old; });
}

template <gpusim::OneOf<int, unsigned, unsigned long long, float> T>
T atomicExch(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T) { return value; });
}

template <gpusim::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return old | value; });
}

template <gpusim::AtomicInteger T>
T atomicAnd(T* address, std::type_identity_t<T> value, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](T old) { return old & value; });
}

inline unsigned atomicInc(unsigned* address, unsigned limit, gpusim::Site site = gpusim::Site::current()) {
  return gpusim::relaxed_update(address, site, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}

inline void __threadfence() { gpusim::fence(gpusim::Scope::device); }
inline void __threadfence_system() { gpusim::fence(gpusim::Scope::device); }
inline void __threadfence_block() { gpusim::fence(gpusim::Scope::block); }

namespace gpusim {

template <typename T>
T hip_atomic_load(const T* address, int order, int scope, Site site = Site::current()) {
  return atomic_load(address, order, scope, site);
}

template <typename T>
void hip_atomic_store(T* address, std::type_identity_t<T> value, int order, int scope) {
  atomic_store(address, value, order, scope);
}

template <typename T>
T hip_atomic_exchange(T* address, std::type_identity_t<T> value, int order, int scope,
                      Site site = Site::current()) {
  return atomic_update(address, order, scope, site, [=](T) { return value; });
}

template <typename T>
T hip_atomic_fetch_add(T* address, std::type_identity_t<T> value, int order, int scope,
                       Site site = Site::current()) {
  return atomic_update(address, order, scope, site, [=](T old) { return wrapping_add(old, value); });
}

template <typename T>
bool hip_atomic_compare_exchange_strong(T* address, T* expected, std::type_identity_t<T> value, int order, int,
                                        int scope, Site site = Site::current()) {
  const T wanted = *expected;
  *expected = atomic_update(address, order, scope, site, [=](T old) { return old == wanted ? value : old; });
  return *expected == wanted;
}

}  // namespace gpusim

// Macros, because clang has builtins of these names in every language.
#define __hip_atomic_load gpusim::hip_atomic_load
#define __hip_atomic_store gpusim::hip_atomic_store
#define __hip_atomic_exchange gpusim::hip_atomic_exchange
#define __hip_atomic_fetch_add gpusim::hip_atomic_fetch_add
#define __hip_atomic_compare_exchange_strong gpusim::hip_atomic_compare_exchange_strong

template <typename T>
T __ldg(const T* address) {
  return *address;
}

template <typename T>
T __ldcg(const T* address) {
  return *address;
}

template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}

#pragma GCC visibility pop
