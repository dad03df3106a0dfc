#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/machine/cpuid.hpp>

namespace lockstep {

/// Processor for which the host kernels were compiled. LOCKSTEP_CPU_ARCH names one processor, or a list of variants.
struct BuiltFor {
  std::string_view architecture;  ///< value of -march=: "native", "x86-64-v3"; empty: the compiler's default
  /// Instruction sets that the compiler was asked to use beyond the oldest x86-64's: "sse3,avx2,fma".
  std::string_view instruction_sets;
};

/// Returns the variants of this build, from the oldest processor's to the newest's. A build for one processor has one
/// variant.
[[nodiscard]] std::span<const BuiltFor> built_variants() noexcept;

/// Returns the index of a variant that runs on `processor`. This is the variant named `wanted`. If `wanted` is empty,
/// it is the last variant whose instruction sets the processor has. Throws UsageError for a name that `variants` lacks.
/// Throws UnsupportedError if the processor cannot run the named variant or, if `wanted` is empty, the first variant.
[[nodiscard]] std::size_t choose_variant(std::span<const BuiltFor> variants, const CpuidAnswers& processor,
                                         std::string_view wanted);

/// Returns the variant whose host kernels run in this process. The first call chooses the variant for this processor,
/// or the one that the environment variable LOCKSTEP_CPU_VARIANT names, and throws as choose_variant() does.
[[nodiscard]] const BuiltFor& built_for();

/// Returns all names that BuiltFor::instruction_sets may contain.
[[nodiscard]] std::vector<std::string_view> known_instruction_sets();
/// Returns true if the processor and its operating system support the set `name`. Throws UsageError for an unknown
/// name.
[[nodiscard]] bool has_instruction_set(const CpuidAnswers& processor, std::string_view name);

/// Throws UnsupportedError if `processor` lacks a set of `built`: "built for x86-64-v4: this processor lacks avx512f".
void require_instruction_sets(const BuiltFor& built, const CpuidAnswers& processor);
/// Returns the name of the variant in use, such as "x86-64-v4"; empty if the build has one variant only. Different
/// variants round differently, so all ranks of a training run on the host must use the same variant. nn::Trainer
/// refuses other ranks.
[[nodiscard]] std::string_view chosen_variant();

/// Calls built_for(). A Context begins with this check; otherwise the first kernel would end the process by SIGILL.
void require_processor();

}  // namespace lockstep
