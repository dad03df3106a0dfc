#pragma once

#include <array>
#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/comm/launch/session.hpp>

namespace lockstep::testing {

/// Starts MPI for programs that run_here() calls in this process. MPI can start only once in a process, so this
/// environment holds a Session for as long as the tests run. It removes variables that MPI sets, because this process
/// also starts other MPI jobs.
class MpiHere : public ::testing::Environment {
 public:
  void SetUp() override {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    const comm::Environment before = comm::process_environment();
    session_.emplace(argc_, argv_);
    for (const auto& [name, value] : comm::process_environment()) {
      if (const auto found = before.find(name); found == before.end()) {
        ::unsetenv(name.c_str());
      } else if (found->second != value) {
        ::setenv(name.c_str(), found->second.c_str(), 1);
      }
    }
  }
  void TearDown() override { session_.reset(); }

 private:
  std::array<char, 5> name_{"test"};
  std::array<char*, 2> arguments_{name_.data(), nullptr};
  int argc_ = 1;
  char** argv_ = arguments_.data();
  std::optional<comm::Session> session_;
};
inline ::testing::Environment* const kMpiHere = ::testing::AddGlobalTestEnvironment(new MpiHere);

}  // namespace lockstep::testing
