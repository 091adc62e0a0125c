// A fiber: a stack and a saved context. An OS thread switches between fibers itself, without the operating system.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "sanitizers.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(GPUSIM_UCONTEXT)
#define GPUSIM_OWN_SWITCH 1
#else
#define GPUSIM_OWN_SWITCH 0
#include <ucontext.h>
#endif

#if GPUSIM_OWN_SWITCH
// Saves the callee-saved registers, stores the stack pointer in *from, and resumes at `to`. Twenty times as fast as
// swapcontext, which sets the signal mask each time. Kernels don't change the floating-point control words.
extern "C" __attribute__((visibility("hidden"))) void gpusim_switch_stack(void** from, void* to) noexcept;
#if defined(__x86_64__)
asm(R"(
.pushsection .text.gpusim_switch_stack,"axG",@progbits,gpusim_switch_stack,comdat
.weak gpusim_switch_stack
.hidden gpusim_switch_stack
.type gpusim_switch_stack,@function
gpusim_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gpusim_switch_stack,.-gpusim_switch_stack
.popsection
)");
#else
asm(R"(
.pushsection .text.gpusim_switch_stack,"axG",%progbits,gpusim_switch_stack,comdat
.weak gpusim_switch_stack
.hidden gpusim_switch_stack
.type gpusim_switch_stack,%function
gpusim_switch_stack:
  stp x29, x30, [sp, #-160]!
  stp x19, x20, [sp, #16]
  stp x21, x22, [sp, #32]
  stp x23, x24, [sp, #48]
  stp x25, x26, [sp, #64]
  stp x27, x28, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #16]
  ldp x21, x22, [sp, #32]
  ldp x23, x24, [sp, #48]
  ldp x25, x26, [sp, #64]
  ldp x27, x28, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x29, x30, [sp], #160
  ret
.size gpusim_switch_stack,.-gpusim_switch_stack
.popsection
)");
#endif
#endif

#pragma GCC visibility push(hidden)

namespace gpusim {

class Fiber {
 public:
  static constexpr size_t stack_bytes = (GPUSIM_ASAN || GPUSIM_TSAN ? 256 : 128) * 1024;

  // The calling OS thread, which already has a stack.
  Fiber() : timeline_(race::this_timeline()) {}

  // A new stack, with a page below it that faults on overflow.
  explicit Fiber(void (*entry)()) : entry_(entry), timeline_(race::new_timeline()) {
    const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
      std::perror("gpusim: no memory for the stack of a GPU thread");
      std::abort();
    }
    low_ = static_cast<char*>(memory) + guard;
    bytes_ = stack_bytes;
    rewind();
  }

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  race::Timeline timeline() const { return timeline_; }
  const void* low() const { return low_; }
  const void* high() const { return low_ + bytes_; }

  // The next switch to this fiber starts its entry function.
  void rewind() {
    fake_stack_ = nullptr;
#if GPUSIM_OWN_SWITCH
    auto* top = reinterpret_cast<uintptr_t*>(low_ + bytes_);
#if defined(__x86_64__)
    constexpr int frame = 8, return_address = 6;  // six registers, the entry, and a return address of zero
#else
    constexpr int frame = 20, return_address = 1;
#endif
    for (int k = 1; k <= frame; ++k) top[-k] = 0;
    top[return_address - frame] = reinterpret_cast<uintptr_t>(entry_);
    context_ = top - frame;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = low_;
    context_.uc_stack.ss_size = bytes_;
    context_.uc_link = nullptr;
    makecontext(&context_, entry_, 0);
#endif
  }

  // Resumes `to`. Returns when something switches back; never if `for_good` is set.
  GPUSIM_NO_TSAN void switch_to(Fiber& to, bool for_good = false) {
#if GPUSIM_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, to.low_, to.bytes_);
#else
    (void)for_good;
#endif
    race::switch_to(to.timeline_);
#if GPUSIM_OWN_SWITCH
    gpusim_switch_stack(&context_, to.context_);
#else
    swapcontext(&context_, &to.context_);
#endif
    arrived(nullptr);
  }

  // Must be the first call of an entry function. Records the bounds of `os_thread`'s stack if that switched here.
  GPUSIM_NO_TSAN void arrived([[maybe_unused]] Fiber* os_thread) {
#if GPUSIM_ASAN
    const void* low = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack_, &low, &bytes);
    if (os_thread != nullptr && os_thread->low_ == nullptr) {
      os_thread->low_ = static_cast<char*>(const_cast<void*>(low));
      os_thread->bytes_ = bytes;
    }
#endif
  }

 private:
  char* low_ = nullptr;
  size_t bytes_ = 0;
  void (*entry_)() = nullptr;
  void* fake_stack_ = nullptr;
  race::Timeline timeline_;
#if GPUSIM_OWN_SWITCH
  void* context_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace gpusim

#pragma GCC visibility pop
