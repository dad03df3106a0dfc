// Tests the C interface on a processor that the library was not built for. This file defines ask_processor(); the
// linker takes it instead of the archive's, so the library sees that processor.
#include <cstdint>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/cpuid.hpp>

namespace lockstep {

/// Answers as the oldest x86-64 does, which has none of the instruction sets that CPUID's later bits report.
CpuidAnswers ask_processor() noexcept {
  return {};
}

}  // namespace lockstep

namespace {

TEST(Processor, ThatTheLibraryWasNotBuiltForIsRefusedByName) {
  lockstep_context context = nullptr;
  if (std::strlen(LOCKSTEP_INSTRUCTION_SETS) == 0) {  // LOCKSTEP_CPU_ARCH="": the build supports this processor, too
    ASSERT_EQ(lockstep_context_create(nullptr, &context), LOCKSTEP_OK) << lockstep_last_error();
    EXPECT_EQ(lockstep_context_destroy(context), LOCKSTEP_OK);
    return;
  }
  EXPECT_EQ(lockstep_context_create(nullptr, &context), LOCKSTEP_ERR_UNSUPPORTED);
  EXPECT_EQ(context, nullptr);
  const std::string text = lockstep_last_error();
  EXPECT_EQ(text.rfind("lockstep_context_create: built for " LOCKSTEP_CPU_ARCH, 0), 0U) << text;
  std::string all = LOCKSTEP_INSTRUCTION_SETS;
  for (std::size_t at = 0; (at = all.find(',', at)) != std::string::npos; at += 2) {
    all.replace(at, 1, ", ");
  }
  EXPECT_NE(text.find(": this processor lacks " + all + ";"), std::string::npos) << text;
  EXPECT_THROW(lockstep::CpuContext(), lockstep::UnsupportedError);
  // A second call gives the same answer, and calls that need no processor still work.
  EXPECT_EQ(lockstep_context_create(nullptr, &context), LOCKSTEP_ERR_UNSUPPORTED);
  EXPECT_EQ(lockstep_version(), static_cast<std::uint32_t>(LOCKSTEP_VERSION));
}

}  // namespace
