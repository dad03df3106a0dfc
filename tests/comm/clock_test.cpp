#include <lockstep/comm/clock.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

#include "tests/comm/local_ranks.hpp"

namespace lockstep::comm {
namespace {

/// Returns the time of a rank's simulated clock, in ns. The clock of rank r is r hours ahead, and runs too fast by r *
/// `too_fast` parts in a thousand.
std::int64_t planted(int rank, double too_fast) {
  const std::int64_t hour = std::int64_t{3600} * 1'000'000'000;
  static const std::int64_t kBegin = SpanRecorder::now_ns();
  const std::int64_t now = SpanRecorder::now_ns();
  return now + rank * hour + std::llround(static_cast<double>(now - kBegin) * too_fast * rank / 1000);
}

TEST(Clock, FindsPlantedOffsets) {
  (void)planted(0, 0);
  on_ranks(3, [](Communicator& ranks) {
    const auto clock = [&] { return planted(ranks.rank(), 0); };
    const ClockReading found = read_clock(ranks, clock);
    const std::int64_t expected = -ranks.rank() * std::int64_t{3600} * 1'000'000'000;
    EXPECT_LE(std::abs(found.offset_ns - expected), found.error_ns) << "rank " << ranks.rank();
    EXPECT_LE(found.error_ns, 100'000'000) << "the shortest of 32 round trips between threads";
    EXPECT_EQ(found.error_ns == 0, ranks.rank() == 0);
  });
}

/// The clock of rank 1 is 50 parts in 1000 too fast. Two readings must map a time between them to rank 0's time. A
/// single reading cannot.
TEST(Clock, FollowsDrift) {
  (void)planted(0, 0);
  on_ranks(2, [](Communicator& ranks) {
    constexpr double kTooFast = 50;
    const auto clock = [&] { return planted(ranks.rank(), kTooFast); };
    AlignedClock aligned{.begin = read_clock(ranks, clock)};
    const std::int64_t until = SpanRecorder::now_ns() + 20'000'000;
    while (SpanRecorder::now_ns() < until) {
    }
    const std::int64_t before = SpanRecorder::now_ns();
    const std::int64_t here = clock();
    const std::int64_t after = SpanRecorder::now_ns();
    while (SpanRecorder::now_ns() < until + 20'000'000) {
    }
    aligned.end = read_clock(ranks, clock);
    if (ranks.rank() == 1) {
      EXPECT_GE(aligned.at_rank0(here), before - aligned.error_ns());
      EXPECT_LE(aligned.at_rank0(here), after + aligned.error_ns());
      const AlignedClock once{.begin = aligned.begin, .end = aligned.begin};
      EXPECT_GE(once.at_rank0(here), before + 1'000'000 - aligned.error_ns()) << "the control: 50 in 1000 of 20 ms";
    } else {
      EXPECT_EQ(aligned.at_rank0(here), here);
    }
  });
}

TEST(Clock, ALineBetweenTwoReadings) {
  const AlignedClock clock{.begin = {.own_ns = 1000, .offset_ns = 500, .error_ns = 3},
                           .end = {.own_ns = 3000, .offset_ns = 700, .error_ns = 2}};
  EXPECT_EQ(clock.at_rank0(1000), 1500);
  EXPECT_EQ(clock.at_rank0(2000), 2600);
  EXPECT_EQ(clock.at_rank0(3000), 3700);
  EXPECT_EQ(clock.error_ns(), 3);
  EXPECT_EQ(AlignedClock().at_rank0(7), 7);
}

TEST(Clock, RefusesNoQuestion) {
  on_ranks(1, [](Communicator& ranks) { EXPECT_THROW((void)read_clock(ranks, SpanRecorder::now_ns, 0), UsageError); });
}

}  // namespace
}  // namespace lockstep::comm
