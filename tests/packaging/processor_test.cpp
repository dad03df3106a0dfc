// The C interface on a processor that the library was not built for. The processor is put in the place of this
// machine's: the definition here comes before the archive's.
#include <cstdint>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/cpuid.hpp>

namespace lockstep {

/// The oldest x86-64 has none of the sets that CPUID's later bits tell of.
CpuidAnswers ask_processor() noexcept {
  return {};
}

}  // namespace lockstep

namespace {

TEST(Processor, ThatTheLibraryWasNotBuiltForIsRefusedByName) {
  lockstep_context context = nullptr;
  if (std::strlen(LOCKSTEP_INSTRUCTION_SETS) == 0) {  // LOCKSTEP_CPU_ARCH="": built for this one too
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
  // Again: the answer stays, and calls that need no processor go on.
  EXPECT_EQ(lockstep_context_create(nullptr, &context), LOCKSTEP_ERR_UNSUPPORTED);
  EXPECT_EQ(lockstep_version(), static_cast<std::uint32_t>(LOCKSTEP_VERSION));
}

}  // namespace
