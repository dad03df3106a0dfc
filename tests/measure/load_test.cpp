#include "measure/load.hpp"

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/comm/local_ranks.hpp"

namespace lockstep::measure {
namespace {

Samples quick() {
  return measure({.target_seconds = 0.02, .min_iterations = 3}, {[] {}});
}

TEST(Load, AMatmulRunsUntilItIsStopped) {
  CpuContext context({.threads = 1});
  ASSERT_TRUE(can_load_matmul(context));
  const std::unique_ptr<Load> load = matmul_load(context);
  for (int round = 0; round < 2; ++round) {
    load->start();
    EXPECT_GE(load->stop(), 0);
  }
  EXPECT_THROW(load->stop(), StateError);
  load->start();
  EXPECT_THROW(load->start(), StateError);
}

TEST(Load, AllReducesEndOnAllRanksTogether) {
  const auto errors = comm::run_ranks(3, [](comm::Communicator& ranks) {
    const std::unique_ptr<comm::Communicator> control = ranks.split(0, ranks.rank());
    CpuContext context({.threads = 1});
    const std::unique_ptr<Load> load = all_reduce_load(ranks, context, 4096);
    const Beside beside = measure_beside(*control, *load, quick);
    EXPECT_GE(beside.samples.seconds.size(), 3U);
    EXPECT_GE(beside.alone_seconds, 0);
    EXPECT_GT(beside.slowdown, 0);
    load->start();
    (void)load->stop();  // fails unless all ranks have made the same number of calls
  });
  EXPECT_EQ(errors, comm::none_failed(3));
}

TEST(Load, OneRankHasNobodyToReduceWith) {
  const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
  CpuContext context({.threads = 1});
  EXPECT_THROW((void)all_reduce_load(*alone, context, 4), UsageError);
}

class Failing final : public Load {
 public:
  ~Failing() override { end(); }

 private:
  void run() override {
    done();
    throw StateError("the load broke");
  }
};

TEST(Load, WhatItThrowsComesOutOfStop) {
  Failing load;
  load.start();
  EXPECT_THROW(load.stop(), StateError);
  load.start();
}

}  // namespace
}  // namespace lockstep::measure
