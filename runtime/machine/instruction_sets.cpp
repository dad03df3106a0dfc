#include <lockstep/runtime/machine/instruction_sets.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>

#include <lockstep/runtime/base/error.hpp>

// This file is compiled for the oldest x86-64, whatever processor the other files are compiled for
// (runtime/CMakeLists.txt).

/// Index of the chosen variant of the host kernels. A host kernel with variants jumps to the function of this variant
/// (cmake/join_cpu_variants.cmake). built_for() writes the index before a Context exists. Functions that reach a kernel
/// without a Context call require_processor() first.
extern "C" {
std::int64_t lockstep_cpu_variant = 0;
}

namespace lockstep {
namespace {

// Sets of registers that the system must save, as bits of XCR0.
constexpr std::uint32_t kNone = 0;
constexpr std::uint32_t kYmm = 0x06;  // SSE registers and the upper halves of YMM
constexpr std::uint32_t kZmm = 0xe6;  // kYmm, the opmasks, the upper halves of ZMM0 to 15, and ZMM16 to 31

struct Known {
  std::string_view name;  ///< name of the option after -m in GCC and clang; their macro is __NAME__, with '_' for '.'
  std::uint32_t CpuidAnswers::*word;
  int bit;
  std::uint32_t registers;
};

// Instruction sets that compilers use without intrinsics. SSE4A, CLMUL and AES are left out, because they need
// intrinsics. Sources: Intel's Software Developer's Manual, volume 2A, CPUID; AMD's manual, volume 3, appendix E.
constexpr std::array kKnown{
    Known{"sse3", &CpuidAnswers::leaf1_ecx, 0, kNone},
    Known{"ssse3", &CpuidAnswers::leaf1_ecx, 9, kNone},
    Known{"fma", &CpuidAnswers::leaf1_ecx, 12, kYmm},
    Known{"sse4.1", &CpuidAnswers::leaf1_ecx, 19, kNone},
    Known{"sse4.2", &CpuidAnswers::leaf1_ecx, 20, kNone},
    Known{"movbe", &CpuidAnswers::leaf1_ecx, 22, kNone},
    Known{"popcnt", &CpuidAnswers::leaf1_ecx, 23, kNone},
    Known{"avx", &CpuidAnswers::leaf1_ecx, 28, kYmm},
    Known{"f16c", &CpuidAnswers::leaf1_ecx, 29, kYmm},
    Known{"lzcnt", &CpuidAnswers::extended_ecx, 5, kNone},
    Known{"xop", &CpuidAnswers::extended_ecx, 11, kYmm},
    Known{"fma4", &CpuidAnswers::extended_ecx, 16, kYmm},
    Known{"tbm", &CpuidAnswers::extended_ecx, 21, kNone},
    Known{"bmi", &CpuidAnswers::leaf7_ebx, 3, kNone},
    Known{"avx2", &CpuidAnswers::leaf7_ebx, 5, kYmm},
    Known{"bmi2", &CpuidAnswers::leaf7_ebx, 8, kNone},
    Known{"avx512f", &CpuidAnswers::leaf7_ebx, 16, kZmm},
    Known{"avx512dq", &CpuidAnswers::leaf7_ebx, 17, kZmm},
    Known{"avx512ifma", &CpuidAnswers::leaf7_ebx, 21, kZmm},
    Known{"avx512cd", &CpuidAnswers::leaf7_ebx, 28, kZmm},
    Known{"avx512bw", &CpuidAnswers::leaf7_ebx, 30, kZmm},
    Known{"avx512vl", &CpuidAnswers::leaf7_ebx, 31, kZmm},
    Known{"avx512vbmi", &CpuidAnswers::leaf7_ecx, 1, kZmm},
    Known{"avx512vbmi2", &CpuidAnswers::leaf7_ecx, 6, kZmm},
    Known{"gfni", &CpuidAnswers::leaf7_ecx, 8, kNone},
    Known{"avx512vnni", &CpuidAnswers::leaf7_ecx, 11, kZmm},
    Known{"avx512bitalg", &CpuidAnswers::leaf7_ecx, 12, kZmm},
    Known{"avx512vpopcntdq", &CpuidAnswers::leaf7_ecx, 14, kZmm},
    Known{"avx512fp16", &CpuidAnswers::leaf7_edx, 23, kZmm},
    Known{"avxvnni", &CpuidAnswers::leaf7_1_eax, 4, kYmm},
    Known{"avx512bf16", &CpuidAnswers::leaf7_1_eax, 5, kZmm},
};

bool runs(const CpuidAnswers& processor, const Known& set) {
  return (processor.*set.word >> set.bit & 1U) != 0 && (processor.xcr0 & set.registers) == set.registers;
}

/// Calls use(name) for each name of a list such as "a,b,c".
template <class Use>
void for_each_name(std::string_view names, Use&& use) {
  while (!names.empty()) {
    const std::size_t end = names.find(',');
    use(names.substr(0, end));
    names.remove_prefix(end == std::string_view::npos ? names.size() : end + 1);
  }
}

bool runs_all(const CpuidAnswers& processor, const BuiltFor& built) {
  bool all = true;
  for_each_name(built.instruction_sets,
                [&](std::string_view name) { all = all && has_instruction_set(processor, name); });
  return all;
}

/// Returns the names of the instruction sets of `built` that the processor lacks, joined by ", ".
std::string missing_sets(const CpuidAnswers& processor, const BuiltFor& built) {
  std::string missing;
  for_each_name(built.instruction_sets, [&](std::string_view name) {
    if (!has_instruction_set(processor, name)) {
      missing.append(missing.empty() ? "" : ", ").append(name);
    }
  });
  return missing;
}

// The texts of errors in this file do not come from concat(), for the reason that require_instruction_sets() states.
std::string begin_of_text(std::string_view wanted) {
  return std::string("LOCKSTEP_CPU_VARIANT is '").append(wanted).append("', ");
}
std::string names_of(std::span<const BuiltFor> variants, std::string_view wanted) {
  std::string text = begin_of_text(wanted).append("expected ");
  for (const BuiltFor& variant : variants) {
    text.append(&variant != variants.data() ? " or " : "").append(variant.architecture);
  }
  return text;
}

}  // namespace

std::span<const BuiltFor> built_variants() noexcept {
  static constexpr BuiltFor kVariants[] = {LOCKSTEP_CPU_VARIANTS};
  return kVariants;
}

std::vector<std::string_view> known_instruction_sets() {
  std::vector<std::string_view> names;
  names.reserve(kKnown.size());
  for (const Known& set : kKnown) {
    names.push_back(set.name);
  }
  return names;
}

bool has_instruction_set(const CpuidAnswers& processor, std::string_view name) {
  for (const Known& set : kKnown) {
    if (set.name == name) {
      return runs(processor, set);
    }
  }
  throw UsageError(
      concat("instruction set '", name, "' is not known, expected a name of the table of instruction sets"));
}

void require_instruction_sets(const BuiltFor& built, const CpuidAnswers& processor) {
  if (runs_all(processor, built)) [[likely]] {
    return;
  }
  const std::string missing = missing_sets(processor, built);
  // Does not call concat(), because the linker may take concat() from an object whose instructions this processor
  // lacks.
  std::string text("built for ");
  text.append(built.architecture.empty() ? "the compiler's default" : built.architecture);
  text.append(built.architecture == "native" ? ", the processor of the machine that compiled it" : "");
  text.append(": this processor lacks ").append(missing);
  text.append("; expected a build with LOCKSTEP_CPU_ARCH for the oldest processor that it runs on");
  throw UnsupportedError(text);
}

std::size_t choose_variant(std::span<const BuiltFor> variants, const CpuidAnswers& processor, std::string_view wanted) {
  std::size_t chosen = variants.size() - 1;
  if (wanted.empty()) {
    while (chosen > 0 && !runs_all(processor, variants[chosen])) {
      --chosen;
    }
  } else {
    while (variants[chosen].architecture != wanted) {
      if (chosen == 0) {
        throw UsageError(names_of(variants, wanted));
      }
      --chosen;
    }
    if (!runs_all(processor, variants[chosen])) {
      throw UnsupportedError(begin_of_text(wanted)
                                 .append("but this processor lacks ")
                                 .append(missing_sets(processor, variants[chosen]))
                                 .append("; expected a variant that it runs, or none"));
    }
  }
  require_instruction_sets(variants[chosen], processor);
  return chosen;
}

const BuiltFor& built_for() {
  static const std::size_t chosen = [] {
    const char* wanted = built_variants().size() > 1 ? std::getenv("LOCKSTEP_CPU_VARIANT") : nullptr;
    const std::size_t variant = choose_variant(built_variants(), ask_processor(), wanted != nullptr ? wanted : "");
    lockstep_cpu_variant = static_cast<std::int64_t>(variant);
    return variant;
  }();
  return built_variants()[chosen];
}

std::string_view chosen_variant() {
  const BuiltFor& chosen = built_for();
  return built_variants().size() > 1 ? chosen.architecture : std::string_view();
}

void require_processor() {
  static_cast<void>(built_for());
}

}  // namespace lockstep
