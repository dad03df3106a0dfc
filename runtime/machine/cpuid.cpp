#include <lockstep/runtime/machine/cpuid.hpp>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {

CpuidAnswers ask_processor() noexcept {
  CpuidAnswers answers;
#if defined(__x86_64__)
  unsigned int a = 0;
  unsigned int b = 0;
  unsigned int c = 0;
  unsigned int d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
    answers.leaf1_ecx = c;
    constexpr unsigned int kSystemUsesXsave = 1U << 27;
    if ((c & kSystemUsesXsave) != 0) {
      // Uses the instruction xgetbv itself, because the compiler's intrinsic needs -mxsave.
      __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
      answers.xcr0 = a;
    }
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    answers.leaf7_ebx = b;
    answers.leaf7_ecx = c;
    answers.leaf7_edx = d;
    const unsigned int subleaves = a;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
      answers.leaf7_1_eax = a;
    }
  }
  if (__get_cpuid(0x80000001U, &a, &b, &c, &d) != 0) {
    answers.extended_ecx = c;
  }
#endif
  return answers;
}

}  // namespace lockstep
