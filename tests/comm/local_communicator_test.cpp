#include <lockstep/comm/local/local_communicator.hpp>

#include <limits>
#include <optional>
#include <string>

#include "communicator_cases.hpp"
#include "local_ranks.hpp"

#include <lockstep/comm/host_exchange.hpp>

namespace lockstep::comm {
namespace {

const std::vector<std::int64_t> kSizes{0, 1, 2, 3, 7, 511, 512, 513, 4099};

class LocalCommunicatorTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalCommunicatorTest, ::testing::Values(1, 2, 3, 4));

TEST_P(LocalCommunicatorTest, OperationsOnInlineStreams) {
  EXPECT_EQ(run_ranks(GetParam(),
                      [](Communicator& comm) {
                        Stream stream = Stream::host_inline();
                        cases::check_everything(comm, stream, kSizes);
                      }),
            none_failed(GetParam()));
}

TEST_P(LocalCommunicatorTest, OperationsOnWorkers) {
  EXPECT_EQ(run_ranks(GetParam(),
                      [](Communicator& comm) {
                        EXPECT_TRUE(comm.can_overlap());
                        EXPECT_EQ(comm.backend(), "local");
                        Stream stream = Stream::host_worker("rank");
                        cases::check_everything(comm, stream, kSizes);
                      }),
            none_failed(GetParam()));
}

TEST_P(LocalCommunicatorTest, WhatAllRanksMustHave) {
  const auto failures = run_ranks(GetParam(), [](Communicator& comm) {
    require_same_on_all_ranks(comm, "program 1.0\nimages 60000");
    const bool last = comm.rank() == comm.size() - 1;
    require_same_on_all_ranks(comm, concat("program 1.0\nimages ", last ? 59999 : 60000));
  });
  for (const std::string& failure : failures) {  // every rank has the same text; a rank alone differs from nobody
    const std::string expected =
        concat("the ranks do not agree: rank 0 has 'images 60000', rank ", GetParam() - 1, " has 'images 59999'");
    EXPECT_EQ(failure.starts_with(expected), GetParam() > 1) << failure;
  }
}

TEST_P(LocalCommunicatorTest, Texts) {
  EXPECT_EQ(run_ranks(GetParam(),
                      [](Communicator& comm) {
                        const std::string mine(static_cast<std::size_t>(comm.rank() * 5), 'a');
                        const auto all = all_gather_text(comm, mine);
                        ASSERT_EQ(static_cast<int>(all.size()), comm.size());
                        for (int r = 0; r < comm.size(); ++r) {
                          EXPECT_EQ(all[static_cast<std::size_t>(r)],
                                    std::string(static_cast<std::size_t>(r * 5), 'a'));
                          EXPECT_EQ(broadcast_text(comm, "from " + std::to_string(comm.rank()), r),
                                    "from " + std::to_string(r));
                        }
                        EXPECT_EQ(broadcast_text(comm, ""), "");
                        const auto values = all_gather_value(comm, 0.5 * comm.rank());
                        const auto pairs = all_gather_values<std::int64_t>(comm, {comm.rank(), 7});
                        ASSERT_EQ(pairs.size(), 2 * values.size());
                        for (int r = 0; r < comm.size(); ++r) {
                          EXPECT_EQ(values[static_cast<std::size_t>(r)], 0.5 * r);
                          EXPECT_EQ(pairs[static_cast<std::size_t>(2 * r)], r);
                          EXPECT_EQ(pairs[static_cast<std::size_t>(2 * r + 1)], 7);
                        }
                      }),
            none_failed(GetParam()));
}

TEST(LocalCommunicator, SumsRunInRankOrder) {
  // 1e8 + 1 rounds to 1e8 in f32: the order decides the result.
  const float values[] = {1e8f, 1.0f, -1e8f, 1.0f};
  EXPECT_EQ(run_ranks(4,
                      [&](Communicator& comm) {
                        Stream stream = Stream::host_inline();
                        std::vector<float> data(1000, values[comm.rank()]);
                        comm.all_reduce(stream, {std::span(data), Shape{1000}});
                        for (const float v : data) {
                          ASSERT_EQ(v, 1.0f);
                        }
                        // Control: another order of the same numbers has another sum.
                        std::vector<float> other(1000, values[(comm.rank() + 1) % 4]);
                        comm.all_reduce(stream, {std::span(other), Shape{1000}});
                        ASSERT_NE(other[0], 1.0f);
                      }),
            none_failed(4));
}

TEST(LocalCommunicator, IntegerSumsWrap) {
  EXPECT_EQ(run_ranks(2,
                      [&](Communicator& comm) {
                        Stream stream = Stream::host_inline();
                        std::vector<std::int32_t> data{std::numeric_limits<std::int32_t>::max()};
                        comm.all_reduce(stream, {std::span(data), Shape{1}});
                        EXPECT_EQ(data[0], -2);
                      }),
            none_failed(2));
}

TEST(LocalCommunicator, NanReachesEveryRank) {
  EXPECT_EQ(run_ranks(3,
                      [&](Communicator& comm) {
                        Stream stream = Stream::host_inline();
                        std::vector<float> data(7, comm.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
                        comm.all_reduce(stream, {std::span(data), Shape{7}});
                        for (const float v : data) {
                          EXPECT_TRUE(v != v);
                        }
                      }),
            none_failed(3));
}

TEST(LocalCommunicator, ARankThatLeavesFailsTheOthers) {
  for (const bool worker : {false, true}) {
    const auto failures = run_ranks(3, [worker](Communicator& comm) {
      Stream stream = worker ? Stream::host_worker("rank") : Stream::host_inline();
      std::vector<float> data(1000, 1.0f);
      const TensorView view{std::span(data), Shape{1000}};
      comm.all_reduce(stream, view);
      if (comm.rank() == 1) {
        stream.synchronize();
        throw DataError("broken file");
      }
      comm.all_reduce(stream, view);
      stream.synchronize();
    });
    EXPECT_EQ(failures[1], "broken file");
    for (const std::size_t r : {0u, 2u}) {
      EXPECT_EQ(failures[r],
                "peer: all_reduce: rank 1 left the group while rank " + std::to_string(r) + " waited for it");
    }
  }
}

TEST(LocalCommunicator, PointToPointWithARankThatLeaves) {
  const auto failures = run_ranks(3, [](Communicator& comm) {
    Stream stream = Stream::host_inline();
    std::vector<float> data(10);
    const TensorView view{std::span(data), Shape{10}};
    if (comm.rank() == 0) {
      comm.send(stream, view, 1);
    } else if (comm.rank() == 2) {
      comm.recv(stream, view, 1);
    }
  });
  EXPECT_EQ(failures[0].substr(0, 5), "peer:");
  EXPECT_EQ(failures[1], "");
  EXPECT_EQ(failures[2].substr(0, 5), "peer:");
}

TEST(LocalCommunicator, ReceivingAnotherSizeFailsBoth) {
  const auto failures = run_ranks(2, [](Communicator& comm) {
    Stream stream = Stream::host_inline();
    std::vector<float> data(10);
    if (comm.rank() == 0) {
      comm.send(stream, {std::span(data), Shape{10}}, 1);
    } else {
      comm.recv(stream, {std::span(data).first(9), Shape{9}}, 0);
    }
  });
  EXPECT_EQ(failures[0], "send: rank 1 does not expect 10 x f32");
  EXPECT_EQ(failures[1], "recv: rank 0 sent 10 x f32, expected 9 x f32");
}

TEST(LocalCommunicator, DifferentCallsFailOnAllRanks) {
  const auto failures = run_ranks(3, [](Communicator& comm) {
    Stream stream = Stream::host_inline();
    std::vector<float> data(10);
    comm.all_reduce(stream, {std::span(data).first(comm.rank() == 2 ? 9 : 10), Shape{comm.rank() == 2 ? 9 : 10}});
  });
  for (const std::string& failure : failures) {
    EXPECT_EQ(failure, "rank 0 called all_reduce of 10 x f32, root 0; rank 2 called all_reduce of 9 x f32, root 0");
  }
}

TEST(LocalCommunicator, DestroyedWhileItsOwnOperationWaits) {
  LocalGroup group(2);
  auto first = group.communicator(0);
  auto second = group.communicator(1);
  Stream stream = Stream::host_worker("rank");
  first->barrier(stream);
  first.reset();
  EXPECT_THROW(stream.synchronize(), StateError);
}

TEST(LocalCommunicator, ARankThatNobodyTookFailsTheOthersWhenTheGroupGoes) {
  std::optional<LocalGroup> group(std::in_place, 2);
  const auto first = group->communicator(0);
  Stream stream = Stream::host_worker("rank");
  first->barrier(stream);
  group.reset();
  EXPECT_THROW(stream.synchronize(), PeerError);
}

TEST(LocalCommunicator, OutlivesItsGroup) {
  std::optional<LocalGroup> group(std::in_place, 1);
  const auto only = group->communicator(0);
  group.reset();
  Stream stream = Stream::host_inline();
  cases::check_operations(*only, stream, {3});
}

TEST(LocalGroup, BadInput) {
  EXPECT_THROW(LocalGroup(0), UsageError);
  LocalGroup group(2);
  EXPECT_THROW((void)group.communicator(2), UsageError);
  EXPECT_THROW((void)group.communicator(-1), UsageError);
  const auto first = group.communicator(0);
  EXPECT_THROW((void)group.communicator(0), StateError);
}

}  // namespace
}  // namespace lockstep::comm
