#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if defined(LOCKSTEP_EMULATION_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define LOCKSTEP_NO_ASAN __attribute__((no_sanitize_address, noinline))
#else
#define LOCKSTEP_NO_ASAN
#endif

#if !defined(LOCKSTEP_EMULATION_UCONTEXT)
extern "C" void lockstep_emulation_switch(void** save, void* restore);
// Switches stacks by the System V x86-64 convention. Saves the stack pointer and the registers that a called function
// must preserve.
asm(R"(
.text
.p2align 4
.type lockstep_emulation_switch, @function
lockstep_emulation_switch:
  .cfi_startproc
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
  .cfi_endproc
.size lockstep_emulation_switch, .-lockstep_emulation_switch
)");
#endif

namespace lockstep::emulation {
namespace {

#if defined(LOCKSTEP_EMULATION_ASAN)
constexpr std::size_t kStack = 256 * 1024;  // bytes; larger than without ASan, because its redzones enlarge the frames
#else
constexpr std::size_t kStack = 64 * 1024;
#endif

std::size_t page() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// The two fibers of the current switch. Global variables are enough, because only one launch at a time has fibers.
Fiber* leaving = nullptr;
Fiber* entering = nullptr;
void (*first_call)() = nullptr;

LOCKSTEP_NO_ASAN void arrive() {
#if defined(LOCKSTEP_EMULATION_ASAN)
  const void* low = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(entering->fake_stack, &low, &bytes);
  if (leaving->low == nullptr) {
    leaving->low = static_cast<std::byte*>(const_cast<void*>(low));
    leaving->bytes = bytes;
  }
#endif
}

LOCKSTEP_NO_ASAN void start() {
  arrive();
  first_call();
}

}  // namespace

void prepare(Fiber& fiber, void (*entry)()) {
  first_call = entry;
  fiber.fake_stack = nullptr;
#if defined(LOCKSTEP_EMULATION_UCONTEXT)
  getcontext(&fiber.registers);
  fiber.registers.uc_stack.ss_sp = fiber.low;
  fiber.registers.uc_stack.ss_size = fiber.bytes;
  fiber.registers.uc_link = nullptr;
  makecontext(&fiber.registers, &start, 0);
#else
  // The stack holds, from its top: null, at which unwinders stop; the address to which the first switch returns; six
  // registers. A function expects the stack pointer 8 bytes below a multiple of 16.
  auto** top = reinterpret_cast<void**>(fiber.low + fiber.bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&start);
  for (int i = 0; i < 6; ++i) {
    *--top = nullptr;
  }
  fiber.stack_pointer = top;
#endif
}

LOCKSTEP_NO_ASAN void switch_fiber(Fiber& from, Fiber& to) {
  leaving = &from;
  entering = &to;
#if defined(LOCKSTEP_EMULATION_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.low, to.bytes);
#endif
#if defined(LOCKSTEP_EMULATION_UCONTEXT)
  swapcontext(&from.registers, &to.registers);
#else
  lockstep_emulation_switch(&from.stack_pointer, to.stack_pointer);
#endif
  arrive();
}

FiberPool::~FiberPool() {
  take_back_all(true);
  for (const auto& fiber : fibers_) {
    munmap(fiber->low - page(), fiber->bytes + page());
  }
}

Fiber* FiberPool::take(void (*entry)()) {
  if (used_ == fibers_.size()) {
    const std::size_t bytes = kStack + page();
    void* map =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (map == MAP_FAILED) {
      throw std::bad_alloc();
    }
    mprotect(map, page(), PROT_NONE);
    auto fiber = std::make_unique<Fiber>();
    fiber->low = static_cast<std::byte*>(map) + page();
    fiber->bytes = kStack;
    fibers_.push_back(std::move(fiber));
  }
  Fiber* fiber = fibers_[used_++].get();
  prepare(*fiber, entry);
  return fiber;
}

void FiberPool::take_back_all([[maybe_unused]] bool abandoned) {
#if defined(LOCKSTEP_EMULATION_ASAN)
  // Frames that never returned leave poisoned redzones on their stack. After a normal launch, only the top of the stack
  // can be poisoned, because the fiber ended there.
  for (std::size_t i = 0; i < used_; ++i) {
    const std::size_t part = abandoned ? fibers_[i]->bytes : 8192;
    __asan_unpoison_memory_region(fibers_[i]->low + fibers_[i]->bytes - part, part);
  }
#endif
  used_ = 0;
}

bool FiberPool::in_guard(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  for (const auto& fiber : fibers_) {
    if (at >= fiber->low - page() && at < fiber->low) {
      return true;
    }
  }
  return false;
}

}  // namespace lockstep::emulation
