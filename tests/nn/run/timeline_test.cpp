#include <lockstep/nn/run/timeline.hpp>

#include "tests/nn/run/timeline_runs.hpp"
#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

using Lane = SpanRecorder::Lane;

class Timeline : public TrainerTest {};

/// Runs two ranks as threads. Returns rank 0's outcome.
TracedOutcome run_two(const TracedRun& run) {
  TracedOutcome outcome;
  comm::on_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
    TracedOutcome own = run_traced(run, grad, control);
    if (grad.rank() == 0) {
      outcome = std::move(own);
    }
  });
  return outcome;
}

double number(const Json::Object& json, const std::string& key) {
  return json.at(key).as<double>(key);
}

/// Indices of the names in by_hand(), in the same order.
enum Number : int { kForward, kReady, kReduce, kWait, kUpdate, kGather };

RankTimeline by_hand(int rank, const std::vector<SpanRecorder::Span>& spans) {
  return {.rank = rank,
          .names = {{"layer forward", SpanKind::forward},
                    {"bucket 0 ready", SpanKind::ready, 0},
                    {"bucket 0", SpanKind::reduce, 0},
                    {"waiting", SpanKind::wait},
                    {"update \"all\"", SpanKind::update},
                    {"parameters of bucket 0", SpanKind::gather, 0}},
          .spans = spans};
}

/// Times are in nanoseconds. Rank 0 computes from 0 to 100, and waits from 100 to 180 for a bucket sum. The sum lasts
/// from 60 to 180, so 40 ns of the sum are hidden.
///
/// A gather lasts from 190 to 260. The update ends at 200 and contains a wait of 2 ns, so the update hides 8 ns of the
/// gather. Rank 1 is ready 60 ns later than rank 0.
TEST_F(Timeline, HiddenAndExposedByHand) {
  TimelineSummary summary;
  summary.add(by_hand(0, {{kForward, Lane::compute, 3, 0, 100},
                          {kReady, Lane::compute, 3, 50, 50},
                          {kReduce, Lane::communication, 3, 60, 180},
                          {kWait, Lane::compute, 3, 100, 180},
                          {kUpdate, Lane::compute, 3, 185, 200},
                          {kWait, Lane::compute, 3, 194, 196},
                          {kGather, Lane::communication, 3, 190, 260}}));
  summary.add(by_hand(1, {{kReady, Lane::compute, 3, 110, 110}, {kReduce, Lane::communication, 3, 115, 180}}));
  ASSERT_EQ(summary.communication().size(), 2U);
  const TimelineSummary::Communication& first = summary.communication()[0];
  EXPECT_DOUBLE_EQ(first.total_s, (120 + 70) * 1e-9);
  EXPECT_DOUBLE_EQ(first.hidden_s, (40 + 8) * 1e-9);
  EXPECT_DOUBLE_EQ(first.exposed_s, (80 + 62) * 1e-9);
  EXPECT_DOUBLE_EQ(summary.communication()[1].exposed_s, 65e-9);
  EXPECT_EQ(summary.waited_for()[0].times, 0);
  EXPECT_EQ(summary.waited_for()[1].times, 1);
  EXPECT_DOUBLE_EQ(summary.waited_for()[1].seconds, 55e-9) << "rank 0 was there at 60, rank 1 at 115";
  EXPECT_EQ(summary.steps(), 1);
  const Json::Object json = summary.json();
  EXPECT_DOUBLE_EQ(number(json, "communication_s"), (190 + 65) / 2.0 * 1e-9);
  EXPECT_DOUBLE_EQ(number(json, "hidden_s") + number(json, "exposed_s"), number(json, "communication_s"));
}

/// If the bucket sum of one rank was not recorded, the summary must not name a late rank.
TEST_F(Timeline, BlamesNobodyWithoutAllRanks) {
  TimelineSummary summary;
  summary.add(by_hand(0, {{kReady, Lane::compute, 3, 50, 50}, {kReduce, Lane::communication, 3, 60, 180}}));
  summary.add(by_hand(1, {{kReady, Lane::compute, 3, 110, 110}}));
  EXPECT_EQ(summary.waited_for()[1].times, 0);
  EXPECT_EQ(summary.text("f").find("waited"), std::string::npos) << summary.text("f");
  EXPECT_NE(TimelineSummary().text("f").find("f: no step was recorded"), std::string::npos);
}

TEST_F(Timeline, WritesWhatViewersRead) {
  TimelineFile::start(path("t.json"));
  EXPECT_TRUE(checked_timeline(path("t.json")).empty()) << "valid before the first step, too";
  TimelineFile file(path("t.json"), 1'000'000);
  file.add(
      by_hand(0, {{kUpdate, Lane::compute, 7, 1'000'001, 3'500'042}, {kReady, Lane::compute, 7, 999'990, 999'990}}));
  file.finish();
  const std::vector<TraceEvent> events = checked_timeline(path("t.json"));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].name, "update \"all\"");
  EXPECT_DOUBLE_EQ(events[0].begin_us, 0.001);
  EXPECT_DOUBLE_EQ(events[0].end_us, 0.001 + 2500.041);
  EXPECT_EQ(events[0].step, 7);
  EXPECT_EQ(events[1].begin_us, 0) << "before the origin, by the error of a clock";
  EXPECT_EQ(testing::count_entries(std::filesystem::path(path("t.json")).parent_path()), 1U) << "no file next to it";
}

TEST_F(Timeline, ReplacesOnlyTimelines) {
  testing::put_file(path("notes.json"), "{\"mine\": 1}");
  EXPECT_THROW(TimelineFile::start(path("notes.json")), UsageError);
  EXPECT_EQ(testing::get_file(path("notes.json")), "{\"mine\": 1}");
  EXPECT_THROW(TimelineFile::start(path("")), UsageError) << "a folder";
  EXPECT_THROW(TimelineFile::start("/dev/null"), UsageError);
  EXPECT_THROW(TimelineFile::start(path("none/t.json")), FileError);
  testing::put_file(path("empty.json"), "");
  TimelineFile::start(path("empty.json"));
  TimelineFile::start(path("empty.json"));
}

TEST_F(Timeline, Steps) {
  EXPECT_EQ(parse_trace_steps("3:12").first, 3);
  EXPECT_EQ(parse_trace_steps("3:12").last, 12);
  EXPECT_EQ(parse_trace_steps("1:1000").last, 1000);
  for (const char* bad :
       {"", "3", "3:", ":3", "0:3", "4:3", "1:1001", "1:2 ", "a:b", "-1:3", "1:2:3", "99999999999999999999:3"}) {
    EXPECT_THROW((void)parse_trace_steps(bad), UsageError) << bad;
  }
  const auto usual = [](std::int64_t steps) {
    const TraceSteps chosen = default_trace_steps(steps);
    return std::pair(chosen.first, chosen.last);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(usual(1000), Pair(10, 20));
  EXPECT_EQ(usual(20), Pair(10, 20));
  EXPECT_EQ(usual(15), Pair(5, 15));
  EXPECT_EQ(usual(4), Pair(1, 4));
  EXPECT_EQ(usual(0), Pair(1, 1));
}

/// gather_timelines() must give rank 0 the timelines of all ranks, complete and in order. If the callback of rank 0
/// throws, the other ranks must not fail.
TEST_F(Timeline, PartsTravelWhole) {
  comm::on_ranks(3, [](comm::Communicator& ranks) {
    RankTimeline own = by_hand(
        ranks.rank(), std::vector<SpanRecorder::Span>(static_cast<std::size_t>(ranks.rank()) * 100,
                                                      {kGather, Lane::communication, 9, ranks.rank(), 1LL << 60}));
    own.dropped = 5 + ranks.rank();
    own.clock_error_ns = 1000 + ranks.rank();
    int next = 0;
    gather_timelines(ranks, own, [&](const RankTimeline& part) {
      EXPECT_EQ(part.rank, next++);
      EXPECT_EQ(part.dropped, 5 + part.rank);
      EXPECT_EQ(part.clock_error_ns, 1000 + part.rank);
      ASSERT_EQ(part.names.size(), own.names.size());
      for (std::size_t i = 0; i < own.names.size(); ++i) {
        EXPECT_EQ(part.names[i].text, own.names[i].text);
        EXPECT_EQ(part.names[i].kind, own.names[i].kind);
        EXPECT_EQ(part.names[i].bucket, own.names[i].bucket);
        EXPECT_EQ(part.names[i].bytes, own.names[i].bytes);
      }
      ASSERT_EQ(part.spans.size(), static_cast<std::size_t>(part.rank) * 100);
      for (const SpanRecorder::Span& span : part.spans) {
        EXPECT_EQ(span.name, kGather);
        EXPECT_EQ(span.lane, Lane::communication);
        EXPECT_EQ(span.step, 9);
        EXPECT_EQ(span.begin_ns, part.rank);
        EXPECT_EQ(span.end_ns, 1LL << 60);
      }
    });
    EXPECT_EQ(next, ranks.rank() == 0 ? 3 : 0);
    if (ranks.rank() == 0) {
      EXPECT_THROW(gather_timelines(ranks, own, [](const RankTimeline&) { throw WriteError("full"); }), WriteError);
    } else {
      gather_timelines(ranks, own, {});
    }
  });
}

TEST_F(Timeline, ShowsEveryStepOfARun) {
  for (const TracedRun& run :
       {TracedRun{.file = path("ddp.json")}, TracedRun{.file = path("off.json"), .overlap = false},
        TracedRun{.file = path("zero1.json"), .strategy = Strategy::zero1, .accumulate = 2},
        TracedRun{.file = path("zero1_off.json"), .overlap = false, .strategy = Strategy::zero1}}) {
    const TracedOutcome outcome = run_two(run);
    const std::vector<TraceEvent> events = checked_timeline(run.file);
    const Json::Object json = outcome.summary->json();
    expect_buckets(events, 2, run.steps, outcome.buckets, number(json, "clock_error_s"));
    std::map<std::string, int> counts;  // number of events of rank 0 by category
    double collectives = 0;
    for (const TraceEvent& event : events) {
      EXPECT_TRUE(event.step >= run.steps.first && event.step <= run.steps.last);
      if (event.rank == 0) {
        ++counts[event.category];
        collectives += event.category == "reduce" || event.category == "gather" ? event.end_us - event.begin_us : 0;
      }
    }
    EXPECT_EQ(counts["step"], 4) << run.file;
    EXPECT_EQ(counts["update"], 4) << run.file;
    EXPECT_EQ(counts["batch"], 4) << run.file;
    EXPECT_EQ(counts["input"], 4 * run.accumulate) << run.file;
    EXPECT_EQ(counts["evaluation"], 1) << run.file;
    EXPECT_EQ(counts["gather"] > 0, run.strategy == Strategy::zero1) << run.file;
    EXPECT_GT(counts["forward"], 40 * run.accumulate) << run.file;
    EXPECT_EQ(number(json, "dropped"), 0) << run.file;
    const TimelineSummary::Communication& first = outcome.summary->communication()[0];
    EXPECT_NEAR(first.total_s * 1e6, collectives, 1e-3) << "the file says the same";
    EXPECT_DOUBLE_EQ(first.hidden_s + first.exposed_s, first.total_s);
    EXPECT_GE(first.hidden_s, 0);
    EXPECT_LE(first.total_s, outcome.reducer.total_s) << "the reducer's own stopwatch, of all ten steps";
    if (!run.overlap) {
      EXPECT_EQ(first.hidden_s, 0) << run.file;
    }
  }
}

TEST_F(Timeline, NamesTheRankThatIsLate) {
  const TracedRun run{.file = path("late.json"), .slow_rank = 1};
  expect_late_rank(run, run_two(run));
}

/// When a run fails, rank 0 must save the timeline of its own steps before the failure.
TEST_F(Timeline, SavesWhatAFailedRunHasRecorded) {
  const TracedRun run{.file = path("failed.json"), .fails_behind = 3};
  EXPECT_FALSE(run_two(run).summary);
  std::map<std::int64_t, int> updates;
  for (const TraceEvent& event : checked_timeline(run.file)) {
    EXPECT_EQ(event.rank, 0);
    updates[event.step] += event.category == "update" ? 1 : 0;
  }
  EXPECT_EQ(updates, (std::map<std::int64_t, int>{{2, 1}, {3, 1}}));
}

TEST_F(Timeline, BringsARankIntoTheTimeOfRankZero) {
  SpanRecorder recorder(Device::cpu(), 1, 1, 1);
  recorder.add_name({.text = "work"});
  const comm::AlignedClock clock{.begin = {.own_ns = 1000, .offset_ns = -500, .error_ns = 3},
                                 .end = {.own_ns = 2000, .offset_ns = -400, .error_ns = 4}};
  const RankTimeline part = rank_timeline(1, recorder, {{0, Lane::compute, 1, 1100, 1500}}, clock);
  EXPECT_EQ(part.spans[0].begin_ns, 610);
  EXPECT_EQ(part.spans[0].end_ns, 1050);
  EXPECT_EQ(part.clock_error_ns, 4);
}

TEST_F(Timeline, ChangesNoNumber) {
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
    const TracedOutcome plain = run_two({.strategy = strategy});
    EXPECT_FALSE(plain.summary);
    EXPECT_EQ(run_two({.file = path("t.json"), .strategy = strategy}).parameters, plain.parameters);
  }
}

}  // namespace
}  // namespace lockstep::nn
