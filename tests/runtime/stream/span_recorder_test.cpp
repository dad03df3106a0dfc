#include <lockstep/runtime/stream/span_recorder.hpp>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::testing {
namespace {

using Lane = SpanRecorder::Lane;

std::int64_t now() {
  return SpanRecorder::now_ns();
}

TEST(SpanRecorder, KeepsTheChosenStepsOnly) {
  SpanRecorder recorder(Device::cpu(), 2, 3, 100);
  const int name = recorder.add_name({.text = "layer"});
  Stream stream = Stream::host_inline();
  SpanRecorder::Scope(&recorder, stream, Lane::compute, name).end();  // a span before the first step
  std::vector<std::int64_t> edges;
  for (std::int64_t step = 1; step <= 4; ++step) {
    recorder.begin_step(step);
    EXPECT_EQ(recorder.recording(), step == 2 || step == 3);
    edges.push_back(now());
    SpanRecorder::Scope span(&recorder, stream, Lane::compute, name);
    span.end();
    SpanRecorder::Scope host(&recorder, name);
    host.end();
    edges.push_back(now());
  }
  const std::vector<SpanRecorder::Span> spans = recorder.take(stream);
  ASSERT_EQ(spans.size(), 4U);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].step, 2 + static_cast<std::int64_t>(i) / 2);
    EXPECT_EQ(spans[i].lane, i % 2 == 0 ? Lane::compute : Lane::host);
    const auto edge = static_cast<std::size_t>(2 * (spans[i].step - 1));
    EXPECT_LE(edges[edge], spans[i].begin_ns);
    EXPECT_LE(spans[i].begin_ns, spans[i].end_ns);
    EXPECT_LE(spans[i].end_ns, edges[edge + 1]);
  }
  EXPECT_EQ(recorder.dropped(), 0);
}

/// The recorded times are the times at which the worker runs the work, not those at which it is enqueued.
TEST(SpanRecorder, TheWorkerReadsTheClock) {
  SpanRecorder recorder(Device::cpu(), 1, 1, 10);
  const int name = recorder.add_name({.text = "work"});
  const int point = recorder.add_name({.text = "ready", .kind = SpanKind::ready, .bucket = 0});
  Stream worker = Stream::host_worker("worker");
  recorder.begin_step(1);
  std::int64_t inside = 0;
  worker.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  SpanRecorder::Scope span(&recorder, worker, Lane::communication, name);
  worker.enqueue([&inside] {
    inside = now();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  span.end();
  recorder.point(worker, Lane::compute, point);
  const std::int64_t enqueued = now();
  worker.synchronize();
  const std::vector<SpanRecorder::Span> spans = recorder.take(worker);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_GT(spans[0].begin_ns, enqueued) << "the control: the work before it takes 20 ms";
  EXPECT_LE(spans[0].begin_ns, inside);
  EXPECT_GE(spans[0].end_ns - spans[0].begin_ns, 5'000'000);
  EXPECT_GE(spans[1].begin_ns, spans[0].end_ns);
  EXPECT_EQ(spans[1].begin_ns, spans[1].end_ns) << "a point";
}

TEST(SpanRecorder, CountsWhatFindsNoRoomAndLeavesOutWhatHasNoEnd) {
  SpanRecorder recorder(Device::cpu(), 1, 1, 2);
  const int name = recorder.add_name({.text = "work"});
  Stream stream = Stream::host_inline();
  recorder.begin_step(1);
  SpanRecorder::Scope(&recorder, stream, Lane::compute, name).end();
  { const SpanRecorder::Scope left(&recorder, stream, Lane::compute, name); }
  EXPECT_EQ(recorder.dropped(), 0);
  SpanRecorder::Scope(&recorder, stream, Lane::compute, name).end();
  SpanRecorder::Scope(&recorder, name).end();
  EXPECT_EQ(recorder.dropped(), 2);
  EXPECT_EQ(recorder.take(stream).size(), 1U);
}

TEST(SpanRecorder, WithoutOneAScopeDoesNothing) {
  Stream stream = Stream::host_inline();
  SpanRecorder::Scope span(nullptr, stream, Lane::compute, 0);
  span.end();
  SpanRecorder::Scope host(nullptr, 0);
  host.end();
}

TEST(SpanRecorder, RefusesSteps) {
  EXPECT_THROW(SpanRecorder(Device::cpu(), 0, 5, 10), UsageError);
  EXPECT_THROW(SpanRecorder(Device::cpu(), 5, 4, 10), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
