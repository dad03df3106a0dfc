#pragma once

#include <cstdint>

namespace lockstep {

/// An x86-64 processor's results of the CPUID instruction, and the registers that the system saves for each thread. All
/// zero on other processors. A value type: tests make their own.
struct CpuidAnswers {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;   ///< leaf 7, subleaf 1
  std::uint32_t extended_ecx = 0;  ///< leaf 0x80000001
  std::uint32_t xcr0 = 0;          ///< 0 if the system saves only SSE's registers
};

/// Reads this processor. In its own file, so that a program can replace the function.
[[nodiscard]] CpuidAnswers ask_processor() noexcept;

}  // namespace lockstep
