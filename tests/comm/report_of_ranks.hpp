#pragma once

#include <cstdio>

#include <gtest/gtest.h>

namespace lockstep::comm {

/// Lets rank 0 report as usual, and all other ranks report failures only. Call it after InitGoogleTest().
inline void report_of_rank(int rank) {
  if (rank == 0) {
    return;
  }
  class Failures : public ::testing::EmptyTestEventListener {
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
      if (result.failed()) {
        std::fprintf(stderr, "%s:%d: %s\n", result.file_name(), result.line_number(), result.summary());
      }
    }
  };
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Failures);
}

}  // namespace lockstep::comm
