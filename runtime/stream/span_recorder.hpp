#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

namespace detail {
class RangeMarker;
}

/// Kinds of spans in a timeline.
enum class SpanKind : unsigned char {
  forward,     ///< forward call of a layer
  backward,    ///< backward call of a layer
  update,      ///< the optimizer's update
  input,       ///< copy of the batch to the device
  graph,       ///< a captured step as a whole
  ready,       ///< point at which the gradients of a bucket are ready; has no duration
  reduce,      ///< sum of a bucket over the ranks
  gather,      ///< all-gather of a bucket's parameters
  wait,        ///< the compute stream waits for a bucket
  batch,       ///< the host waits for the loader
  evaluation,  ///< an evaluation, timed on the host from begin to end
  checkpoint,  ///< a checkpoint, timed on the host from begin to end
  step,        ///< the host enqueues a step
};
[[nodiscard]] const char* name_of(SpanKind kind);

/// Records when work ran, for the timeline of some steps. A rank has one recorder. The constructor allocates its
/// memory, for a fixed number of spans. Only one thread may call the recorder, which must outlive the streams' work.
///
/// A Scope enqueues two readings of the clock on a stream. On a host stream, the worker reads the clock (on an inline
/// stream, the caller does). On a CUDA stream, the Scope records two events, which take() reads. A Scope allocates
/// nothing and does not wait. Outside the chosen steps, and while a stream is captured, no times are taken.
///
/// If a tool is attached to the process (Nsight Systems; only in a build with CUDA), a Scope is also a named range of
/// that tool around the enqueueing calls. A point (SpanKind::ready) is a mark of the tool. The tool gets ranges and
/// marks in every step, and also while a stream is captured. For a range of a bucket, the tool also shows the number of
/// bytes; for a step of the host, the number of the step.
class SpanRecorder {
 public:
  /// Lanes of the timeline. Spans in a lane follow each other. Lane `beside` has calls of a layer that run on the side
  /// stream, while other calls run in Lane::compute.
  enum class Lane : unsigned char { compute, communication, host, beside };

  struct Name {
    std::string text;
    SpanKind kind = SpanKind::forward;
    int bucket = -1;         ///< index of the bucket, for the kinds ready, reduce and gather; -1 for other kinds
    std::int64_t bytes = 0;  ///< bytes of the bucket's gradients in the dtype in which they are summed
  };
  /// A recorded span. Its times are in nanoseconds of now_ns(); a point (SpanKind::ready) ends when it begins.
  struct Span {
    int name = 0;  ///< name of the span, as an index into names()
    Lane lane = Lane::compute;
    std::int64_t step = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  /// Records all spans from step `first` to step `last`, including spans between two steps. Keeps at most `capacity`
  /// spans; dropped() counts all further spans. `device` is the streams' device; on a GPU, each span gets two events.
  /// Throws UsageError unless 1 <= first <= last.
  SpanRecorder(Device device, std::int64_t first, std::int64_t last, std::size_t capacity);
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;
  ~SpanRecorder();
  /// Makes a recorder that takes no times and only serves the attached tool. Returns nullptr if no tool is attached.
  [[nodiscard]] static std::unique_ptr<SpanRecorder> for_tool();

  /// Returns the nanoseconds of the steady clock, counted from an arbitrary time of the machine.
  [[nodiscard]] static std::int64_t now_ns() noexcept;

  /// Registers a name and returns its number. Call this before the steps, because it allocates.
  int add_name(Name name);
  [[nodiscard]] const std::vector<Name>& names() const { return names_; }

  void begin_step(std::int64_t step) noexcept { step_ = step; }  ///< sets the step of the spans that follow
  [[nodiscard]] bool recording() const noexcept { return step_ >= first_ && step_ <= last_; }

  /// A span, as an object on the thread's stack: spans are nested or follow each other. Without a recorder, a Scope
  /// does nothing. If an exception prevents end(), the span is not in the timeline; the tool's range ends in any case.
  class Scope {
   public:
    /// Begins a span of work on a stream. The span contains all work that is enqueued from now on until end().
    Scope(SpanRecorder* recorder, Stream& stream, Lane lane, int name) : recorder_(recorder) {
      if (recorder_ != nullptr) {
        stream_ = &stream;
        span_ = recorder_->begin(stream_, lane, name, 0);
      }
    }
    /// Begins a span of the calling thread on Lane::host. `number` is for the tool; 0 means no number.
    Scope(SpanRecorder* recorder, int name, std::int64_t number = 0) : recorder_(recorder) {
      if (recorder_ != nullptr) {
        span_ = recorder_->begin(nullptr, Lane::host, name, number);
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (recorder_ != nullptr) {
        recorder_->leave_range();
      }
    }
    void end() {
      if (recorder_ != nullptr) {
        recorder_->end(stream_, span_);
        recorder_->leave_range();
        recorder_ = nullptr;
      }
    }

   private:
    SpanRecorder* recorder_;
    Stream* stream_ = nullptr;  ///< stream of the span; nullptr for a span of the host
    int span_ = -1;
  };
  void point(Stream& stream, Lane lane, int name);

  /// Returns the spans that have begun and ended, in the order of begin(). If `compute` is a CUDA stream, waits for it.
  /// Other streams must be idle; otherwise their unfinished spans are left out.
  [[nodiscard]] std::vector<Span> take(Stream& compute);
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }
  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t last() const { return last_; }

 private:
  struct Record {
    int name = 0;
    Lane lane = Lane::compute;
    bool on_device = false;
    bool ended = false;  ///< true after end() has recorded the span's second event; used for a GPU
    std::int64_t step = 0;
    /// Time at which the span began; 0 before it begins. The thread that runs the stream's work stores the time.
    std::atomic<std::int64_t> begin_ns{0};
    std::atomic<std::int64_t> end_ns{0};
  };
  explicit SpanRecorder(std::unique_ptr<detail::RangeMarker> ranges);
  /// Begins a span and returns its number, or -1 if no time is taken; for -1, end() takes no time either. Enters the
  /// tool's range last, so that an error of the stream leaves no range open.
  [[nodiscard]] int begin(Stream* stream, Lane lane, int name, std::int64_t number);
  [[nodiscard]] int begin_time(Stream* stream, Lane lane, int name);
  void end(Stream* stream, int span);
  void leave_range() noexcept;
  [[nodiscard]] int reserve(Lane lane, int name);
  [[nodiscard]] Record* slot_of(int span) { return span >= 0 ? &slots_[static_cast<std::size_t>(span)] : nullptr; }
  [[nodiscard]] Event& begin_event(std::size_t slot) { return events_[2 * slot]; }
  [[nodiscard]] Event& end_event(std::size_t slot) { return events_[2 * slot + 1]; }

  Device device_;
  std::int64_t first_;
  std::int64_t last_;
  std::size_t capacity_;
  std::unique_ptr<Record[]> slots_;
  std::vector<Event> events_;  ///< if device_ is a GPU: two events for each element of slots_; otherwise empty
  std::size_t used_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t step_ = 0;
  std::vector<Name> names_;
  std::unique_ptr<detail::RangeMarker> ranges_;  ///< ranges of the attached tool; nullptr if there is no tool
};

}  // namespace lockstep
