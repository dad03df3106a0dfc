#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/machine/cpuid.hpp>

namespace lockstep {

/// Processor for which the host kernels were compiled (LOCKSTEP_CPU_ARCH).
struct BuiltFor {
  std::string_view architecture;  ///< value of -march=: "native", "x86-64-v3"; empty: the compiler's default
  /// Instruction sets that the compiler was asked to use beyond the oldest x86-64's: "sse3,avx2,fma".
  std::string_view instruction_sets;
};
[[nodiscard]] BuiltFor built_for() noexcept;

/// Returns all names that BuiltFor::instruction_sets may contain.
[[nodiscard]] std::vector<std::string_view> known_instruction_sets();
/// Returns true if the processor and its operating system support the set `name`. Throws UsageError for an unknown
/// name.
[[nodiscard]] bool has_instruction_set(const CpuidAnswers& processor, std::string_view name);

/// Throws UnsupportedError if `processor` lacks a set of `built`: "built for x86-64-v4: this processor lacks avx512f".
void require_instruction_sets(const BuiltFor& built, const CpuidAnswers& processor);
/// Checks this build on this processor with require_instruction_sets(), once in a process. A Context begins with this
/// check; otherwise the first kernel would end the process by SIGILL.
void require_processor();

}  // namespace lockstep
