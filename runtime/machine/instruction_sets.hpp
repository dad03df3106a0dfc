#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/machine/cpuid.hpp>

namespace lockstep {

/// What the host kernels were compiled for (LOCKSTEP_CPU_ARCH).
struct BuiltFor {
  std::string_view architecture;      ///< of -march=: "native", "x86-64-v3"; empty: the compiler's default
  std::string_view instruction_sets;  ///< of x86-64, beyond its oldest: "sse3,avx2,fma"; as the compiler was asked
};
[[nodiscard]] BuiltFor built_for() noexcept;

/// All names that instruction_sets may have, and whether such a processor, under its system, runs the set.
[[nodiscard]] std::vector<std::string_view> known_instruction_sets();
/// UsageError where the name is not known.
[[nodiscard]] bool has_instruction_set(const CpuidAnswers& processor, std::string_view name);

/// UnsupportedError where the processor lacks something: "built for x86-64-v4: this processor lacks avx512f, avx512vl".
void require_instruction_sets(const BuiltFor& built, const CpuidAnswers& processor);
/// The same for this build on this processor, which is asked once. A Context begins with it: later, the first kernel
/// would end the process by SIGILL.
void require_processor();

}  // namespace lockstep
