// Tests the C interface on a processor for which the library was not built. This file defines ask_processor(). The
// linker uses this definition instead of the archive's, so the library sees an old processor.
#include <cstdint>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/cpuid.hpp>

namespace lockstep {

/// Answers as the oldest x86-64 processor does, which has none of the newer instruction sets.
CpuidAnswers ask_processor() noexcept {
  return {};
}

}  // namespace lockstep

namespace {

TEST(Processor, ThatTheLibraryWasNotBuiltForIsRefusedByName) {
  lockstep_context context = nullptr;
  // LOCKSTEP_CPU_ARCH="" builds for every x86-64 processor, so this processor must be accepted.
  if (std::strlen(LOCKSTEP_INSTRUCTION_SETS) == 0) {
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
  // A second call must give the same error. Calls that do not depend on the processor must still work.
  EXPECT_EQ(lockstep_context_create(nullptr, &context), LOCKSTEP_ERR_UNSUPPORTED);
  EXPECT_EQ(lockstep_version(), static_cast<std::uint32_t>(LOCKSTEP_VERSION));
}

}  // namespace
