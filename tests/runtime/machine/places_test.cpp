// Runs in a program that OpenMP has bound before main() (the test's environment sets OMP_PROC_BIND). Tests which
// processors the process has, and where its helper threads run.
#include <unistd.h>

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>
#include <lockstep/runtime/machine/processors.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::testing {
namespace {

/// Returns the processors of the parent process.
ProcessorSet of_parent() {
  constexpr const char* kName = "Cpus_allowed_list:";
  std::ifstream status("/proc/" + std::to_string(getppid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kName)) {
      return ProcessorSet::parse(line.substr(std::string(kName).size()));
    }
  }
  return {};
}

TEST(Places, OfAProcessThatOpenMPHasBound) {
  const ProcessorSet all = of_parent();
  const ProcessorSet bound = ProcessorSet::of_this_thread();
  if (openmp_places().empty() || bound == all) {
    GTEST_SKIP() << "needs OMP_PROC_BIND=close OMP_PLACES=threads and two processors";
  }
  EXPECT_EQ(ProcessorSet::of_process(), all);
  ProcessorSet found;
  helper_thread([&] { found = ProcessorSet::of_this_thread(); }).join();
  EXPECT_EQ(found, all);
  Stream stream = Stream::host_worker("places_test");
  stream.enqueue([&] { found = ProcessorSet::of_this_thread(); });
  stream.synchronize();
  EXPECT_EQ(found, all);
  EXPECT_EQ(ProcessorSet::of_this_thread(), bound) << "this thread stays";
  leave_place();
  EXPECT_EQ(ProcessorSet::of_this_thread(), all);
  // This mask is no place of OpenMP, so other code must have chosen it. The process then has only these processors.
  if (all.count() > 2) {
    bind_this_thread(ProcessorSet::of({all.numbers()[0], all.numbers()[1]}));
    EXPECT_EQ(ProcessorSet::of_process().count(), 2);
  }
}

}  // namespace
}  // namespace lockstep::testing
