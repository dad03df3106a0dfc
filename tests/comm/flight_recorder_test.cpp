#include <lockstep/comm/flight_recorder.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using testing::expect_holds;

IssuedOperation all_reduce(std::int64_t elements) {
  return {.operation = Operation::all_reduce, .dtype = DType::f32, .elements = elements};
}

TEST(FlightRecorder, AnOperationComesBackAsItWas) {
  const std::vector<std::pair<IssuedOperation, std::string>> cases{
      {{Operation::all_reduce, DType::f32, 1000}, "all_reduce of 1000 f32"},
      {{Operation::reduce_scatter, DType::bf16, 0}, "reduce_scatter of 0 bf16"},
      {{Operation::all_gather, DType::u64, (std::int64_t{1} << 40) - 1}, "all_gather of 1099511627775 u64"},
      {{Operation::all_to_all, DType::f16, 7}, "all_to_all of 7 f16"},
      {{Operation::broadcast, DType::u8, 8, 65535}, "broadcast of 8 u8 from rank 65535"},
      {{Operation::barrier}, "barrier"},
      {{Operation::split}, "split"}};
  FlightRecorder log;
  EXPECT_EQ(log.count(), 0);
  EXPECT_FALSE(log.at(1));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    IssuedOperation operation = cases[i].first;
    operation.at_ns = static_cast<std::int64_t>(100 + i);
    log.add(operation);
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto kept = log.at(static_cast<std::int64_t>(i) + 1);
    ASSERT_TRUE(kept) << i;
    EXPECT_EQ(kept->operation.text(), cases[i].second);
    EXPECT_EQ(kept->operation.at_ns, static_cast<std::int64_t>(100 + i));
  }
  EXPECT_FALSE(log.at(0));
  EXPECT_FALSE(log.at(static_cast<std::int64_t>(cases.size()) + 1));
}

TEST(FlightRecorder, TheLastOnesAreKept) {
  FlightRecorder log;
  const std::int64_t count = 3 * FlightRecorder::kKept + 5;
  for (std::int64_t i = 1; i <= count; ++i) {
    log.add(all_reduce(i));
  }
  EXPECT_EQ(log.count(), count);
  EXPECT_FALSE(log.at(count - FlightRecorder::kKept)) << "overwritten";
  EXPECT_FALSE(log.at(count - FlightRecorder::kKept + 1)) << "the next one takes its place";
  for (std::int64_t i = count - FlightRecorder::kKept + 2; i <= count; ++i) {
    ASSERT_TRUE(log.at(i)) << i;
    EXPECT_EQ(log.at(i)->operation.elements, i);
  }
}

TEST(FlightRecorder, TheHashIsThatOfAllOperationsButNotOfTheirTimes) {
  const auto hash_of = [](const std::vector<IssuedOperation>& operations) {
    FlightRecorder log;
    for (const IssuedOperation& each : operations) {
      log.add(each);
    }
    return log.at(log.count())->hash;
  };
  const IssuedOperation barrier{};
  IssuedOperation later = all_reduce(3);
  later.at_ns = 77;
  const std::uint64_t hash = hash_of({barrier, all_reduce(3), barrier});
  EXPECT_EQ(hash_of({barrier, later, barrier}), hash);
  EXPECT_NE(hash_of({barrier, all_reduce(4), barrier}), hash);
  EXPECT_NE(hash_of({all_reduce(3), barrier, barrier}), hash) << "the order counts";
  EXPECT_NE(hash_of({barrier, all_reduce(3)}), hash);
  EXPECT_NE(hash_of({barrier, all_reduce(3), barrier, barrier}), hash);
}

TEST(FlightRecorder, ARankThatCallsSomethingElseIsFound) {
  FlightRecorder logs[3];
  const std::vector<RankLog> ranks{{4, &logs[0]}, {5, &logs[1]}, {6, &logs[2]}};
  EXPECT_EQ(first_difference("grad", ranks), "");
  EXPECT_EQ(furthest_behind("grad", ranks), "");
  EXPECT_EQ(first_difference("grad", {}), "");
  EXPECT_EQ(furthest_behind("grad", {}), "");
  for (std::int64_t i = 1; i <= 56; ++i) {
    for (FlightRecorder& log : logs) {
      log.add(all_reduce(i));
    }
  }
  EXPECT_EQ(first_difference("grad", ranks), "");
  EXPECT_EQ(furthest_behind("grad", ranks), "");
  logs[0].add(all_reduce(1000));
  logs[2].add(all_reduce(1000));
  EXPECT_EQ(first_difference("grad", ranks), "") << "rank 5 may still call it";
  EXPECT_EQ(furthest_behind("grad", ranks),
            "rank 5 has not called operation 57 of grad, all_reduce of 1000 f32, as rank 4 has");
  logs[1].add({.operation = Operation::all_gather, .dtype = DType::i32, .elements = 20});
  const std::string expected =
      "ranks call different operations: operation 57 of grad is all_reduce of 1000 f32 on rank 4 and all_gather of 20 "
      "i32 on rank 5";
  EXPECT_EQ(first_difference("grad", ranks), expected);
  EXPECT_EQ(furthest_behind("grad", ranks), "");
  for (std::int64_t i = 0; i < 200; ++i) {  // these operations are equal, but the earlier difference is still reported
    for (FlightRecorder& log : logs) {
      log.add(all_reduce(i));
    }
  }
  logs[1].add(all_reduce(1));
  EXPECT_EQ(first_difference("grad", ranks), expected);
  for (std::int64_t i = 0; i < FlightRecorder::kKept; ++i) {
    for (FlightRecorder& log : logs) {
      log.add(all_reduce(i));
    }
  }
  expect_holds(first_difference("grad", ranks), "differ between rank 4 and rank 5");
  expect_holds(first_difference("grad", ranks), "ranks call different operations: those of grad before number ");
}

TEST(FlightRecorder, ARankFarBehindIsNotTakenForADifferentOne) {
  FlightRecorder slow;
  FlightRecorder fast;
  slow.add(all_reduce(1));
  for (std::int64_t i = 1; i <= 2 * FlightRecorder::kKept; ++i) {
    fast.add(all_reduce(i));
  }
  const std::vector<RankLog> ranks{{0, &slow}, {1, &fast}};
  EXPECT_EQ(first_difference("grad", ranks), "");
  EXPECT_EQ(furthest_behind("grad", ranks), "") << "what it has not called is no longer kept";
}

// A reader must never get fields of two different operations. In this test every field of an operation follows from the
// operation's number, so the reader can check this.
TEST(FlightRecorder, AReaderSeesWholeOperationsWhileTheyAreAdded) {
  FlightRecorder log;
  std::atomic<bool> over{false};
  std::atomic<std::int64_t> seen{0};
  std::thread writer([&] {
    for (std::int64_t i = 1; i <= 300000 || (seen < 1000 && i <= 3000000000); ++i) {
      log.add({.operation = Operation::broadcast,
               .dtype = DType::f64,
               .elements = i,
               .root = static_cast<int>(i % 1000),
               .at_ns = -i});
    }
    over = true;
  });
  std::int64_t wrong = 0;
  while (!over) {
    const std::int64_t count = log.count();
    for (const std::int64_t number : {count, count - FlightRecorder::kKept / 2, count - FlightRecorder::kKept + 3}) {
      if (const auto kept = log.at(number)) {
        ++seen;
        const IssuedOperation& o = kept->operation;
        wrong += o.elements == number && o.root == number % 1000 && o.at_ns == -number ? 0 : 1;
      }
    }
  }
  writer.join();
  EXPECT_GT(seen, 0);
  EXPECT_EQ(wrong, 0) << "of " << seen;
}

}  // namespace
}  // namespace lockstep::comm
