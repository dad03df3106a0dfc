#include <lockstep/comm/local/local_communicator.hpp>

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
  on_ranks(GetParam(), [](Communicator& comm) {
    Stream stream = Stream::host_inline();
    cases::check_everything(comm, stream, kSizes);
  });
}

TEST_P(LocalCommunicatorTest, OperationsOnWorkers) {
  on_ranks(GetParam(), [](Communicator& comm) {
    EXPECT_TRUE(comm.can_overlap());
    EXPECT_EQ(comm.backend(), "local");
    Stream stream = Stream::host_worker("rank");
    cases::check_everything(comm, stream, kSizes);
  });
}

TEST_P(LocalCommunicatorTest, WhatAllRanksMustHave) {
  const auto failures = run_ranks(GetParam(), [](Communicator& comm) {
    require_same_on_all_ranks(comm, "program 1.0\nimages 60000");
    const bool last = comm.rank() == comm.size() - 1;
    require_same_on_all_ranks(comm, concat("program 1.0\nimages ", last ? 59999 : 60000));
  });
  // All ranks must get the same error. A group of one rank cannot disagree, so it gets no error.
  for (const std::string& failure : failures) {
    const std::string expected =
        concat("the ranks do not agree: rank 0 has 'images 60000', rank ", GetParam() - 1, " has 'images 59999'");
    EXPECT_EQ(failure.starts_with(expected), GetParam() > 1) << failure;
  }
}

TEST_P(LocalCommunicatorTest, Texts) {
  on_ranks(GetParam(), [](Communicator& comm) { cases::check_texts(comm); });
}

TEST(LocalCommunicator, SumsRunInRankOrder) {
  on_ranks(4, [](Communicator& comm) { cases::check_order_of_sums(comm); });
}

TEST(LocalCommunicator, IntegerSumsWrap) {
  on_ranks(2, [](Communicator& comm) { cases::check_nan_and_wrap(comm); });
}

TEST(LocalCommunicator, NanReachesEveryRank) {
  on_ranks(3, [](Communicator& comm) { cases::check_nan_and_wrap(comm); });
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
      EXPECT_EQ(failures[r], "peer: all_reduce: rank 1 left the group while rank " + std::to_string(r) +
                                 " waited for it, expected all ranks until the end");
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
  EXPECT_EQ(failures[0], "send: rank 1 does not expect 10 x f32, expected the tensor of its recv");
  EXPECT_EQ(failures[1], "recv: rank 0 sent 10 x f32, expected 9 x f32");
}

TEST(LocalCommunicator, DifferentCallsFailOnAllRanks) {
  const auto failures = run_ranks(3, [](Communicator& comm) {
    Stream stream = Stream::host_inline();
    std::vector<float> data(10);
    comm.all_reduce(stream, {std::span(data).first(comm.rank() == 2 ? 9 : 10), Shape{comm.rank() == 2 ? 9 : 10}});
  });
  for (const std::string& failure : failures) {
    EXPECT_EQ(failure,
              "rank 0 called all_reduce of 10 x f32, root 0; rank 2 called all_reduce of 9 x f32, root 0; expected the "
              "same call on all ranks");
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
