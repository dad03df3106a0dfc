#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/clock.hpp>
#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

/// The timeline of some steps on all ranks, as a file for viewers and as a summary in a few numbers.
namespace lockstep::nn {

/// One rank's part of a timeline. Times are in nanoseconds of rank 0's clock.
struct RankTimeline {
  int rank = 0;
  std::vector<SpanRecorder::Name> names{};
  std::vector<SpanRecorder::Span> spans{};
  std::int64_t dropped = 0;         ///< number of spans for which there was no memory
  std::int64_t clock_error_ns = 0;  ///< largest error that the times have from the conversion to rank 0's clock
};

/// Returns the part of rank `rank` with `spans`, whose times are converted to rank 0's clock.
[[nodiscard]] RankTimeline rank_timeline(int rank, const SpanRecorder& recorder, std::vector<SpanRecorder::Span> spans,
                                         const comm::AlignedClock& clock);

/// Calls take() on rank 0 with each rank's part of the timeline, in rank order. Rank 0 holds only one received part at
/// a time. If take() throws, the exception is thrown again after all parts have arrived. Collective.
void gather_timelines(comm::Communicator& control, const RankTimeline& own,
                      const std::function<void(const RankTimeline&)>& take);

/// A file in Chrome's trace event format, for ui.perfetto.dev and chrome://tracing. Each rank is a process with the
/// threads compute, communication and host, and a fourth thread if weight gradients were computed beside. Spans are
/// complete events ("X"); an instant ("i") marks a ready bucket.
class TimelineFile {
 public:
  /// Replaces the file by a timeline without events, so that the file is valid JSON even if the run fails. UsageError
  /// if the path holds something other than a timeline. FileError if the file cannot be written.
  static void start(const std::string& path);
  /// Opens a temporary file next to `path`. finish() then replaces `path` by that file. Times in the file count from
  /// origin_ns.
  TimelineFile(std::string path, std::int64_t origin_ns);
  void add(const RankTimeline& part);
  void finish();

 private:
  void put(const std::string& event);
  void name(const char* what, int rank, int thread, const std::string& name);
  std::string path_;
  std::string temporary_;
  OutputFile out_;
  std::int64_t origin_ns_;
  bool empty_ = true;
  std::string text_;  ///< text that is not yet written to out_
};

/// A summary of a timeline in a few numbers.
class TimelineSummary {
 public:
  /// Times of one rank's communication over all steps. Communication means collectives: sums of buckets and exchanges
  /// of parameters.
  struct Communication {
    double total_s = 0;    ///< sum of the durations of all collectives
    double hidden_s = 0;   ///< part of total_s in which the rank also computed a layer or the update
    double exposed_s = 0;  ///< part of total_s in which the rank did not compute
  };
  /// How often this rank was the last to have a bucket ready, and how long the first rank had then waited for this rank
  /// in the sum of the bucket.
  struct WaitedFor {
    std::int64_t times = 0;
    double seconds = 0;
  };

  void add(const RankTimeline& part);  ///< adds a rank's part; call it in rank order

  [[nodiscard]] const std::vector<Communication>& communication() const { return communication_; }  ///< index: rank
  [[nodiscard]] std::vector<WaitedFor> waited_for() const;                                          ///< index: rank
  [[nodiscard]] std::int64_t steps() const { return spans_ > 0 ? last_ - first_ + 1 : 0; }
  /// Returns up to three lines in the style of a run's header. `file` is the path of the timeline.
  [[nodiscard]] std::string text(const std::string& file) const;
  /// Returns first_step, last_step, spans, dropped and clock_error_s; communication_s, hidden_s and exposed_s per step,
  /// as means over the ranks; and `ranks`, an array by rank of communication_s, hidden_s, exposed_s, last_ready and
  /// waited_for_s of that rank over all steps.
  [[nodiscard]] Json::Object json() const;

 private:
  struct Arrival {
    int rank = 0;
    std::int64_t ready_ns = 0;
    std::optional<std::int64_t> begin_ns{};
  };
  [[nodiscard]] Communication mean_of_a_step() const;
  std::vector<Communication> communication_;
  std::map<std::pair<std::int64_t, int>, std::vector<Arrival>> arrivals_;  ///< arrivals for each step and bucket
  std::int64_t spans_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t clock_error_ns_ = 0;
  std::int64_t first_ = 0;  ///< smallest step number of all spans
  std::int64_t last_ = 0;
  bool graphs_ = false;  ///< true: some recorded steps ran as a CUDA graph
};

}  // namespace lockstep::nn
