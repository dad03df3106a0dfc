// Planned memory against what the process really takes.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <fstream>

#include <gtest/gtest.h>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/optimizer.hpp>

#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Resident set of this process in bytes.
std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  in >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Memory, ReuseSavesAQuarterOfAnInferencePlan) {
  CpuContext context;
  const Plan plan(context, resnet(50), Mode::infer, 8, {.uint8_input = false});
  const double part = static_cast<double>(plan.workspace_bytes()) / static_cast<double>(plan.unshared_bytes());
  EXPECT_LE(part, 0.75);
  const Plan without(context, resnet(50), Mode::infer, 8, {.uint8_input = false, .reuse_memory = false});
  EXPECT_EQ(without.workspace_bytes(), without.unshared_bytes()) << "the switch turns it off";
}

TEST(Memory, PlannedPeakIsTheGrowthOfTheProcess) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer's shadow memory is part of the resident set";
  }
  const Model model = resnet(50);
  const std::int64_t before = resident_bytes();
  testing::Net net(model, Mode::train, 8, DType::f32, 2);
  Sgd sgd(net.context(), net.parameters(), {.momentum = 0.9, .nesterov = false});
  net.run();
  sgd.update(net.context(), net.state().view(StateField::learning_rate));
  const auto growth = static_cast<double>(resident_bytes() - before);
  const auto planned = static_cast<double>(net.parameters().bytes() + net.workspace_bytes() + net.state().bytes());
  RecordProperty("planned_mb", std::to_string(planned / 1e6));
  RecordProperty("growth_mb", std::to_string(growth / 1e6));
  EXPECT_LE(std::abs(growth - planned), 0.1 * planned) << "planned " << planned / 1e6 << " MB, grown " << growth / 1e6;
}

TEST(Memory, StepsDoNotGrowTheProcess) {
  if (kSanitized) {
    GTEST_SKIP() << "a sanitizer keeps freed memory";
  }
  testing::Net net(cifar_resnet(20, 10, 16, 16), Mode::train, 8, DType::f32, 2);
  Sgd sgd(net.context(), net.parameters(), {.momentum = 0.9, .nesterov = false});
  std::int64_t early = 0;
  for (int step = 1; step <= 200; ++step) {
    net.run();
    sgd.update(net.context(), net.state().view(StateField::learning_rate));
    if (step == 20) {
      early = resident_bytes();
    }
  }
  EXPECT_LE(std::abs(resident_bytes() - early), std::int64_t{1} << 20);
}

}  // namespace
}  // namespace lockstep::nn
