#include <lockstep/runtime/machine/cpu_binding.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/no_threads.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::testing {
namespace {

CpuBinding plan(const char* allowed, const char* online, const char* near) {
  return plan_binding(ProcessorSet::parse(allowed), ProcessorSet::parse(online), ProcessorSet::parse(near));
}

TEST(CpuBinding, OnMadeUpMachines) {
  // Two sockets of 8 cores with two hardware threads each: 0-7,16-23 and 8-15,24-31.
  EXPECT_EQ(plan("0-31", "0-31", "8-15,24-31").processors.text(), "8-15,24-31");
  EXPECT_EQ(plan("0-31", "0-31", "8-15,24-31").reason, "bound next to the GPU");
  // The plan uses only processors that the thread may use. If other code has already limited the thread, the plan
  // changes nothing.
  EXPECT_EQ(plan("0-3", "0-31", "8-15").processors.text(), "none");
  EXPECT_EQ(plan("0-3,8-11", "0-31", "8-15").processors.text(), "none");
  EXPECT_EQ(plan("0-3,8-11", "0-31", "8-15").reason, "not all of the machine, and left so");
  // With one socket there is nothing to do. Processors that the kernel lists but that are not online must not matter.
  EXPECT_EQ(plan("0-7", "0-7", "0-7").reason, "all next to the GPU");
  EXPECT_EQ(plan("0-7", "0-7", "0-63").processors.text(), "none");
  EXPECT_EQ(plan("0-7", "0-7", "4-63").processors.text(), "4-7");
  EXPECT_NE(plan("0-7", "0-7", "").reason.find("does not tell"), std::string::npos);
  EXPECT_NE(plan("0-7", "0-7", "8-15").reason.find("8-15"), std::string::npos);
}

TEST(CpuBinding, WhatTheKernelTells) {
  const TemporaryFolder root;
  const std::string device = root / "bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device + "/local_cpulist") << "8-15,24-31\n";
  EXPECT_EQ(processors_near("0000:3b:00.0", root.path()).text(), "8-15,24-31");
  EXPECT_TRUE(processors_near("0000:af:00.0", root.path()).empty());
}

TEST(CpuBinding, OfAThread) {
  const ProcessorSet before = ProcessorSet::of_this_thread();
  ASSERT_FALSE(before.empty());
  const ProcessorSet last = ProcessorSet::parse(std::to_string(before.numbers().back()));
  ProcessorSet bound;
  ProcessorSet inherited;
  std::thread([&] {
    bind_this_thread(last);
    bound = ProcessorSet::of_this_thread();
    std::thread([&] { inherited = ProcessorSet::of_this_thread(); }).join();
  }).join();
  EXPECT_EQ(bound, last);
  EXPECT_EQ(inherited, last);
  EXPECT_EQ(ProcessorSet::of_this_thread(), before) << "only the thread that asks";
  EXPECT_THROW(bind_this_thread({}), UsageError);
  EXPECT_THROW(bind_this_thread(ProcessorSet::parse("65000")), StateError);
  EXPECT_TRUE(bind_this_thread_near("no-such-device").processors.empty());
  EXPECT_EQ(ProcessorSet::of_this_thread(), before);
}

TEST(HelperThread, SaysWhatTheSystemRefuses) {
  bool ran = false;
  std::string text;
  {
    const NoThreads none;
    try {
      helper_thread([&] { ran = true; }).join();
    } catch (const std::system_error& error) {
      text = error.what();
    }
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(text.find("a thread cannot be started, expected room for one more (ulimit -u and -v, or pids.max): "), 0U)
      << text;
  helper_thread([&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace lockstep::testing
