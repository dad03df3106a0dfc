// Tests the ranges that lockstep sends to a tool, which NVTX loads (tests/support/nvtx/tool.hpp). The tests also run
// without a tool; then NVTX loads nothing.
#include <pthread.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

#include "tests/support/nvtx/tool.hpp"

namespace lockstep::testing {
namespace {

using Lane = SpanRecorder::Lane;
using Lines = std::vector<std::string>;

TEST(Ranges, ThereIsARecorderForAToolWhereOneIsAttached) {
  EXPECT_EQ(SpanRecorder::for_tool() != nullptr, wants_tool());
  EXPECT_EQ(tool_record() != nullptr, wants_tool());
}

class RangesOfTool : public ::testing::Test {
 protected:
  void SetUp() override {
    recorder_ = SpanRecorder::for_tool();
    if (recorder_ == nullptr) {
      ASSERT_FALSE(wants_tool());
      return;
    }
    record_ = tool_record();
    ASSERT_NE(record_, nullptr);
    from_ = record_->events;
  }
  [[nodiscard]] bool none() const { return record_ == nullptr; }
  [[nodiscard]] SpanRecorder& recorder() const { return *recorder_; }
  [[nodiscard]] const ToolRecord& record() const { return *record_; }
  [[nodiscard]] const ToolEvent& event(int i) const { return record_->event[from_ + i]; }
  [[nodiscard]] Lines lines() const { return ranges_of_thread(*record_, from_, pthread_self()); }

 private:
  std::unique_ptr<SpanRecorder> recorder_;
  const ToolRecord* record_ = nullptr;
  int from_ = 0;
};

TEST_F(RangesOfTool, LieWithinEachOtherAndTakeNoTime) {
  if (none()) {
    return;
  }
  const int outer = recorder().add_name({.text = "outer", .kind = SpanKind::step});
  const int inner = recorder().add_name({.text = "inner", .kind = SpanKind::reduce, .bucket = 1, .bytes = 4096});
  const int point = recorder().add_name({.text = "there", .kind = SpanKind::ready, .bucket = 1, .bytes = 8});
  const int names = record().names;
  Stream stream = Stream::host_inline();
  for (int i = 0; i < 2; ++i) {
    SpanRecorder::Scope around(&recorder(), outer, 7);
    SpanRecorder::Scope within(&recorder(), stream, Lane::communication, inner);
    recorder().point(stream, Lane::compute, point);
    within.end();
    around.end();
  }
  EXPECT_EQ(lines(), (Lines{"outer", "  inner", "    there !", "outer", "  inner", "    there !"}));
  EXPECT_EQ(record().names, names) << "names are registered once";
  EXPECT_EQ(event(0).number, 7);
  EXPECT_EQ(event(1).number, 4096) << "bytes of a bucket";
  EXPECT_EQ(event(2).number, 8);
  EXPECT_EQ(record().faults, 0);
  EXPECT_TRUE(recorder().take(stream).empty());
  EXPECT_EQ(recorder().dropped(), 0) << "it was not to take times";
}

TEST_F(RangesOfTool, HaveACategoryAndAColourOfTheirKind) {
  if (none()) {
    return;
  }
  EXPECT_EQ(record().domains, 1) << "one for all recorders";
  EXPECT_STREQ(record().domain, "lockstep");
  std::set<std::uint32_t> colours;
  std::set<std::uint32_t> categories;
  int kinds = 0;
  for (; kinds <= static_cast<int>(SpanKind::step); ++kinds) {
    const auto kind = static_cast<SpanKind>(kinds);
    SpanRecorder::Scope span(&recorder(), recorder().add_name({.text = "any", .kind = kind}));
    span.end();
    EXPECT_STREQ(record().category[event(2 * kinds).category], name_of(kind));
    colours.insert(event(2 * kinds).colour);
    categories.insert(event(2 * kinds).category);
  }
  EXPECT_EQ(colours.size(), static_cast<std::size_t>(kinds));
  EXPECT_EQ(categories.size(), static_cast<std::size_t>(kinds));
  EXPECT_EQ(categories.count(0), 0U) << "which is no category";
}

TEST_F(RangesOfTool, EndWithAnException) {
  if (none()) {
    return;
  }
  // Uses a recorder with times. The stream fails before a span, within the span, or at its end, and every range must
  // still be closed.
  SpanRecorder timed(Device::cpu(), 1, 1, 100);
  timed.begin_step(1);
  const int outer = timed.add_name({.text = "outer"});
  const int inner = timed.add_name({.text = "inner"});
  for (const int fails_before : {0, 1, 2}) {
    Stream worker = Stream::host_worker("worker");
    const auto poison = [&worker] {
      worker.enqueue([] { throw UsageError("bad work"); });
      EXPECT_THROW(worker.synchronize(), UsageError);
    };
    const auto step = [&] {
      SpanRecorder::Scope around(&timed, outer);
      if (fails_before == 0) {
        poison();
      }
      SpanRecorder::Scope within(&timed, worker, Lane::compute, inner);
      require<UsageError>(fails_before != 1, "bad call");
      poison();
      within.end();
      around.end();
    };
    EXPECT_THROW(step(), UsageError) << fails_before;
  }
  EXPECT_EQ(lines(), (Lines{"outer", "outer", "  inner", "outer", "  inner"}));
  EXPECT_EQ(record().faults, 0);
}

TEST_F(RangesOfTool, AreInATimelinesRecorderToo) {
  if (none()) {
    return;
  }
  SpanRecorder timed(Device::cpu(), 2, 2, 1);
  const int name = timed.add_name({.text = "work"});
  Stream stream = Stream::host_inline();
  for (std::int64_t step = 1; step <= 3; ++step) {
    timed.begin_step(step);
    for (int i = 0; i < 2; ++i) {
      SpanRecorder::Scope span(&timed, stream, Lane::compute, name);
      span.end();
    }
  }
  EXPECT_EQ(lines(), Lines(6, "work")) << "in every step, and where the timeline has no room";
  EXPECT_EQ(timed.take(stream).size(), 1U);
  EXPECT_EQ(timed.dropped(), 1);
}

}  // namespace
}  // namespace lockstep::testing
