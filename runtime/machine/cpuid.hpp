#pragma once

#include <cstdint>

namespace lockstep {

/// Results of an x86-64 processor's CPUID instruction, and the set of registers that the system saves for each thread.
/// All members are 0 on other processors. Tests make their own values.
struct CpuidAnswers {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;   ///< EAX of leaf 7, subleaf 1
  std::uint32_t extended_ecx = 0;  ///< ECX of leaf 0x80000001
  std::uint32_t xcr0 = 0;          ///< register XCR0; 0 if the system saves only SSE's registers
};

/// Reads the answers of this processor. Has its own source file, so that a program can replace the function.
[[nodiscard]] CpuidAnswers ask_processor() noexcept;

}  // namespace lockstep
