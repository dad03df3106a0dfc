#include <lockstep/runtime/machine/instruction_sets.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::testing {
namespace {

/// Returns the flags of the first processor in /proc/cpuinfo. Empty on machines other than x86-64.
std::set<std::string> flags_of_the_kernel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) {
      std::istringstream words(line.substr(line.find(':') + 1));
      return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
    }
  }
  return {};
}

/// Returns the Linux kernel's name for an instruction set, which may differ from lockstep's name.
std::string kernel_name(std::string_view name) {
  static const std::map<std::string_view, std::string> other{{"sse3", "pni"},
                                                             {"sse4.1", "sse4_1"},
                                                             {"sse4.2", "sse4_2"},
                                                             {"lzcnt", "abm"},
                                                             {"bmi", "bmi1"},
                                                             {"avx512vbmi2", "avx512_vbmi2"},
                                                             {"avxvnni", "avx_vnni"},
                                                             {"avx512vnni", "avx512_vnni"},
                                                             {"avx512vpopcntdq", "avx512_vpopcntdq"},
                                                             {"avx512bf16", "avx512_bf16"},
                                                             {"avx512fp16", "avx512_fp16"},
                                                             {"avx512bitalg", "avx512_bitalg"}};
  const auto found = other.find(name);
  return found == other.end() ? std::string(name) : found->second;
}

/// Returns the answers of a Haswell processor (x86-64-v3), under a system that saves YMM registers.
CpuidAnswers haswell() {
  CpuidAnswers p;
  p.leaf1_ecx = 1U << 0 | 1U << 9 | 1U << 12 | 1U << 19 | 1U << 20 | 1U << 22 | 1U << 23 | 1U << 28 | 1U << 29;
  p.leaf7_ebx = 1U << 3 | 1U << 5 | 1U << 8;
  p.extended_ecx = 1U << 5;
  p.xcr0 = 7;
  return p;
}

/// The answers of a Skylake server processor (x86-64-v4), under a system that saves ZMM registers.
CpuidAnswers skylake_server() {
  CpuidAnswers p = haswell();
  p.leaf7_ebx |= 1U << 16 | 1U << 17 | 1U << 28 | 1U << 30 | 1U << 31;
  p.xcr0 = 0xe7;
  return p;
}

const BuiltFor kV3{.architecture = "x86-64-v3",
                   .instruction_sets = "sse3,ssse3,fma,sse4.1,sse4.2,movbe,popcnt,avx,f16c,lzcnt,bmi,avx2,bmi2"};
const BuiltFor kV4{.architecture = "x86-64-v4",
                   .instruction_sets = "sse3,avx2,avx512f,avx512dq,avx512cd,avx512bw,avx512vl"};

std::string refusal(const BuiltFor& built, const CpuidAnswers& processor) {
  try {
    require_instruction_sets(built, processor);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "taken";
}

TEST(InstructionSets, AreThoseThatTheKernelNames) {
  const std::set<std::string> flags = flags_of_the_kernel();
  if (flags.empty()) {
    GTEST_SKIP() << "the kernel names no instruction sets of x86-64 here";
  }
  const CpuidAnswers here = ask_processor();
  for (const std::string_view name : known_instruction_sets()) {
    EXPECT_EQ(has_instruction_set(here, name), flags.contains(kernel_name(name))) << name;
  }
}

TEST(InstructionSets, WhatIsMissingIsNamed) {
  EXPECT_EQ(refusal(kV3, haswell()), "taken");
  EXPECT_EQ(refusal(kV4, haswell()),
            "built for x86-64-v4: this processor lacks avx512f, avx512dq, avx512cd, avx512bw, avx512vl; expected a "
            "build with "
            "LOCKSTEP_CPU_ARCH for the oldest processor that it runs on");
  CpuidAnswers skylake = skylake_server();
  EXPECT_EQ(refusal(kV4, skylake), "taken");
  skylake.leaf7_ebx &= ~(1U << 31);
  EXPECT_NE(refusal(kV4, skylake).find("lacks avx512vl;"), std::string::npos);
  EXPECT_EQ(refusal({.architecture = "", .instruction_sets = ""}, {}), "taken");
}

TEST(InstructionSets, RegistersThatTheSystemDoesNotKeepAreMissing) {
  CpuidAnswers p = haswell();
  p.xcr0 = 3;  // the system saves SSE registers only
  const std::string text = refusal(kV3, p);
  EXPECT_NE(text.find("lacks fma, avx, f16c, avx2;"), std::string::npos) << text;
  p.leaf7_ebx |= 1U << 16;
  p.xcr0 = 7;  // the system does not save ZMM registers
  EXPECT_FALSE(has_instruction_set(p, "avx512f"));
  EXPECT_TRUE(has_instruction_set(p, "avx2"));
}

TEST(Variants, TheNewestThatRunsIsChosen) {
  const std::array variants{kV3, kV4};
  EXPECT_EQ(choose_variant(variants, skylake_server(), ""), 1U);
  EXPECT_EQ(choose_variant(variants, haswell(), ""), 0U);
  EXPECT_EQ(choose_variant(std::span(variants).first(1), skylake_server(), ""), 0U);
}

TEST(Variants, TheNamedOneIsTaken) {
  const std::array variants{kV3, kV4};
  EXPECT_EQ(choose_variant(variants, skylake_server(), "x86-64-v3"), 0U);
  EXPECT_EQ(choose_variant(variants, skylake_server(), "x86-64-v4"), 1U);
  try {
    static_cast<void>(choose_variant(variants, skylake_server(), "x86-64-v2"));
    FAIL() << "a variant that the build lacks was taken";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "LOCKSTEP_CPU_VARIANT is 'x86-64-v2', expected x86-64-v3 or x86-64-v4");
  }
}

TEST(Variants, MissingInstructionsAreAnError) {
  const std::array variants{kV3, kV4};
  try {
    static_cast<void>(choose_variant(variants, haswell(), "x86-64-v4"));
    FAIL() << "a variant that the processor does not run was taken";
  } catch (const UnsupportedError& error) {
    EXPECT_STREQ(error.what(),
                 "LOCKSTEP_CPU_VARIANT is 'x86-64-v4', but this processor lacks avx512f, avx512dq, avx512cd, avx512bw, "
                 "avx512vl; expected a variant that it runs, or none");
  }
  EXPECT_THROW(static_cast<void>(choose_variant(variants, {}, "")), UnsupportedError);
}

TEST(Variants, OfThisBuildBeginWithTheOldest) {
  ASSERT_FALSE(built_variants().empty());
  EXPECT_EQ(chosen_variant().empty(), built_variants().size() == 1);
  for (std::size_t i = 1; i < built_variants().size(); ++i) {
    EXPECT_GT(built_variants()[i].instruction_sets.size(), built_variants()[i - 1].instruction_sets.size());
  }
}

TEST(InstructionSets, NamesAreKnown) {
  EXPECT_THROW(static_cast<void>(has_instruction_set({}, "avx1024")), UsageError);
  EXPECT_NO_THROW(require_processor());  // this build runs on this processor
  std::istringstream names{std::string(built_for().instruction_sets)};
  const std::vector<std::string_view> known = known_instruction_sets();
  for (std::string name; std::getline(names, name, ',');) {
    EXPECT_NE(std::find(known.begin(), known.end(), name), known.end()) << name;
  }
  EXPECT_EQ(std::set<std::string_view>(known.begin(), known.end()).size(), known.size());
}

#if defined(__x86_64__)
/// CMake found the instruction sets of the kernels by a query of the compiler. This file is compiled without the
/// kernels' options, so the macros here show the compiler's default. The kernels must have at least the sets of this
/// default.
TEST(InstructionSets, OfTheKernelsHoldThoseOfTheCompilersDefault) {
  const std::string_view sets = built_for().instruction_sets;
#if defined(__AVX2__)
  EXPECT_NE(sets.find("avx2"), std::string_view::npos);
#endif
  if (built_for().architecture == "native") {
    for (const char* name : {"sse3", "ssse3", "sse4.1", "avx", "avx2", "avx512f"}) {
      EXPECT_EQ(("," + std::string(sets) + ",").find("," + std::string(name) + ",") != std::string::npos,
                flags_of_the_kernel().contains(kernel_name(name)))
          << name;
    }
  }
}
#endif

}  // namespace
}  // namespace lockstep::testing
