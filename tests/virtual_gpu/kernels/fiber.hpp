#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#if !defined(__x86_64__) && !defined(LOCKSTEP_EMULATION_UCONTEXT)
#define LOCKSTEP_EMULATION_UCONTEXT 1
#endif
#if defined(LOCKSTEP_EMULATION_UCONTEXT)
#include <ucontext.h>
#endif

namespace lockstep::emulation {

/// A stack on which code runs. A switch stores the registers that a call preserves on the stack of the fiber that it
/// leaves. Signal masks and floating-point modes are not saved. AddressSanitizer is notified of each switch.
struct Fiber {
  /// Lowest byte of the stack. For the OS thread's own stack it is nullptr until a fiber switches back to that stack.
  std::byte* low = nullptr;
  std::size_t bytes = 0;
  void* fake_stack = nullptr;  ///< AddressSanitizer's handle of the stack
#if defined(LOCKSTEP_EMULATION_UCONTEXT)
  ucontext_t registers = {};
#else
  void* stack_pointer = nullptr;
#endif
};

/// Prepares the fiber so that the next switch to it calls `entry` on an empty stack. `entry` must not return.
void prepare(Fiber& fiber, void (*entry)());

/// Suspends `from`, the running fiber, and continues `to`. Returns when a later switch continues `from`.
void switch_fiber(Fiber& from, Fiber& to);

/// A pool of fibers with stacks above a guard page, kept for later launches. The stack of an abandoned fiber is reused
/// without running destructors, so code on it must own nothing.
class FiberPool {
 public:
  FiberPool() = default;
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;
  ~FiberPool();

  /// Returns an unused fiber, prepared to call `entry`.
  Fiber* take(void (*entry)());
  /// Marks all fibers as unused. abandoned: some fibers stopped in the middle of a kernel.
  void take_back_all(bool abandoned);
  [[nodiscard]] std::size_t size() const { return fibers_.size(); }
  /// Returns true if the address is in the guard page of a stack.
  [[nodiscard]] bool in_guard(const void* address) const;

 private:
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::size_t used_ = 0;
};

}  // namespace lockstep::emulation
