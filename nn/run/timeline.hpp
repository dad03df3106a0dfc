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

/// Makes a timeline of some steps on all ranks: a file for trace viewers, and a summary of a few numbers.
namespace lockstep::nn {

/// One rank's part of a timeline. Times are in nanoseconds, on the clock of rank 0.
struct RankTimeline {
  int rank = 0;
  std::vector<SpanRecorder::Name> names{};
  std::vector<SpanRecorder::Span> spans{};
  std::int64_t dropped = 0;         ///< number of spans that were lost for lack of memory
  std::int64_t clock_error_ns = 0;  ///< largest error of the conversion to rank 0's clock, in nanoseconds
};

/// Returns the part of rank `rank`. Converts the times of `spans` to rank 0's clock.
[[nodiscard]] RankTimeline rank_timeline(int rank, const SpanRecorder& recorder, std::vector<SpanRecorder::Span> spans,
                                         const comm::AlignedClock& clock);

/// Sends every rank's part of the timeline to rank 0, which calls take() with each part in rank order. Rank 0 holds
/// only one received part at a time. If take() throws, the exception is thrown again after all parts have arrived.
/// Collective.
void gather_timelines(comm::Communicator& control, const RankTimeline& own,
                      const std::function<void(const RankTimeline&)>& take);

/// A file in Chrome's trace event format, for ui.perfetto.dev and chrome://tracing. Each rank is a process with the
/// threads compute, communication and host. A fourth thread shows weight gradients on the side stream, if there were
/// any. Spans are complete events ("X"). An instant event ("i") shows when a bucket was ready.
class TimelineFile {
 public:
  /// Replaces the file by a timeline without events, so that the file is valid JSON even if the run fails. Throws
  /// UsageError if the file at `path` is not a timeline. Throws FileError if the file cannot be written.
  static void start(const std::string& path);
  /// Opens a temporary file next to `path`. finish() renames the temporary file to `path`. origin_ns is time 0 of the
  /// file.
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
  std::string text_;
};

class TimelineSummary {
 public:
  /// Communication of one rank over all steps. Communication means collectives: sums of buckets, and exchanges of
  /// parameters.
  struct Communication {
    double total_s = 0;    ///< total duration of all collectives
    double hidden_s = 0;   ///< part of total_s in which the rank also computed a layer or the update
    double exposed_s = 0;  ///< part of total_s in which the rank did not compute
  };
  /// How often all ranks waited for this rank, because its bucket was ready last. `seconds` is the total time from the
  /// first rank's arrival at the bucket's sum to this rank's arrival.
  struct WaitedFor {
    std::int64_t times = 0;
    double seconds = 0;
  };

  void add(const RankTimeline& part);  ///< adds a rank's part; must be called in rank order

  [[nodiscard]] const std::vector<Communication>& communication() const { return communication_; }  ///< index: rank
  [[nodiscard]] std::vector<WaitedFor> waited_for() const;                                          ///< index: rank
  [[nodiscard]] std::int64_t steps() const { return spans_ > 0 ? last_ - first_ + 1 : 0; }
  /// Returns up to three lines for the terminal, in the style of a run's header. `file` is the path of the timeline.
  [[nodiscard]] std::string text(const std::string& file) const;
  /// Returns a JSON object. first_step, last_step, spans, dropped and clock_error_s describe the timeline.
  /// communication_s, hidden_s and exposed_s are seconds per step, as means over the ranks. `ranks` is an array with
  /// one object per rank: communication_s, hidden_s, exposed_s, last_ready and waited_for_s over all steps.
  [[nodiscard]] Json::Object json() const;

 private:
  struct Arrival {
    int rank = 0;
    std::int64_t ready_ns = 0;
    std::optional<std::int64_t> begin_ns{};
  };
  [[nodiscard]] Communication mean_of_a_step() const;
  std::vector<Communication> communication_;
  /// Arrivals of the ranks, for each pair of step and bucket.
  std::map<std::pair<std::int64_t, int>, std::vector<Arrival>> arrivals_;
  std::int64_t spans_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t clock_error_ns_ = 0;
  std::int64_t first_ = 0;  ///< smallest step number of all spans
  std::int64_t last_ = 0;
  bool graphs_ = false;  ///< true: some recorded steps ran as a CUDA graph
};

}  // namespace lockstep::nn
