#pragma once

#include <cstdint>

namespace lockstep {

/// What an x86-64 processor answers to the CPUID instruction, and which registers the system keeps for each thread. All
/// zero on other processors. A value: tests make processors of their own.
struct CpuidAnswers {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;   ///< leaf 7, subleaf 1
  std::uint32_t extended_ecx = 0;  ///< leaf 0x80000001
  std::uint32_t xcr0 = 0;          ///< 0 where the system keeps no more than SSE's registers
};

/// Asks this processor. In a file of its own, so that a program can put another one in its place.
[[nodiscard]] CpuidAnswers ask_processor() noexcept;

}  // namespace lockstep
