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

/// A stack on which code runs. A switch saves the registers that a call preserves, on the stack that is left. It does
/// not save signal masks and floating-point modes. AddressSanitizer is told of each switch.
struct Fiber {
  /// The lowest byte of the stack; nullptr for the OS thread's own stack until a switch back to it.
  std::byte* low = nullptr;
  std::size_t bytes = 0;
  void* fake_stack = nullptr;  ///< AddressSanitizer's handle of the stack
#if defined(LOCKSTEP_EMULATION_UCONTEXT)
  ucontext_t registers = {};
#else
  void* stack_pointer = nullptr;
#endif
};

/// Prepares the fiber: the next switch to it calls `entry` on an empty stack. `entry` must not return.
void prepare(Fiber& fiber, void (*entry)());

/// Leaves `from`, the running fiber, and goes on in `to`. Returns when another switch comes back to `from`.
void switch_fiber(Fiber& from, Fiber& to);

/// Stacks with a guard page below, kept for later launches. Objects on a stack that is abandoned are not destroyed, so
/// the code on it must own nothing.
class FiberPool {
 public:
  FiberPool() = default;
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;
  ~FiberPool();

  /// Returns a fiber that is not in use, prepared to call `entry`.
  Fiber* take(void (*entry)());
  /// Takes all fibers back. abandoned: some fibers stopped in the middle of a kernel.
  void take_back_all(bool abandoned);
  [[nodiscard]] std::size_t size() const { return fibers_.size(); }
  /// True if the address is in the guard page of a stack.
  [[nodiscard]] bool in_guard(const void* address) const;

 private:
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::size_t used_ = 0;
};

}  // namespace lockstep::emulation
