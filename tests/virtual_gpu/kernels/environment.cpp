// A main() for programs that run kernels in the emulation. Each test gets a new machine. Each repetition
// (--gtest_repeat) uses another schedule. A test fails if the stand-in for CUDA or the emulation has found something
// that CUDA forbids.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/emulation/launch.hpp>
#include <lockstep/emulation/planted.hpp>

#include "control.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::emulation {
namespace {

/// Returns the schedule of a repetition: ascending for 0, random(1) for 1, random(2) for 2, and so on.
Schedule schedule_of(std::uint64_t repetition) {
  return repetition == 0 ? Schedule::ascending() : Schedule::random(repetition);
}

class Machine final : public ::testing::EmptyTestEventListener {
  void OnTestIterationStart(const ::testing::UnitTest&, int iteration) override {
    repetition_ = first_ + static_cast<std::uint64_t>(iteration);
  }
  void OnTestStart(const ::testing::TestInfo&) override {
    standin::reset({.devices = 1, .bytes_per_device = std::size_t{1} << 30, .seed = repetition_});
    set_schedule(schedule_of(repetition_));
  }
  void OnTestEnd(const ::testing::TestInfo& info) override {
    for (const std::string& violation : standin::violations()) {
      ADD_FAILURE() << violation << "\nschedule: " << schedule_of(repetition_).text()
                    << "; again: LOCKSTEP_EMULATION_FIRST=" << repetition_
                    << " and --gtest_filter=" << info.test_suite_name() << '.' << info.name();
    }
    for (const std::string& leak : standin::leaks()) {
      ADD_FAILURE() << "not given back: " << leak;
    }
  }

  std::uint64_t first_ = std::getenv("LOCKSTEP_EMULATION_FIRST") != nullptr
                             ? std::strtoull(std::getenv("LOCKSTEP_EMULATION_FIRST"), nullptr, 10)
                             : 0;
  std::uint64_t repetition_ = 0;
};

}  // namespace
}  // namespace lockstep::emulation

constinit const std::int64_t lockstep::testing::kLarge = std::int64_t{1} << 14;  // see tests/support/cuda_test.hpp

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (const char* fault = std::getenv("LOCKSTEP_PLANTED_FAULT"); fault != nullptr) {
    lockstep::emulation::planted_fault = std::atoi(fault);
  }
  ::testing::UnitTest::GetInstance()->listeners().Append(new lockstep::emulation::Machine);
  return RUN_ALL_TESTS();
}
