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

/// Kind of a span of a timeline.
enum class SpanKind : unsigned char {
  forward,     ///< a call of a layer
  backward,    ///< a call of a layer
  update,      ///< the update of the optimizer
  input,       ///< the copy of the batch to the device
  graph,       ///< a captured step as a whole
  ready,       ///< a point, not a span: the gradients of a bucket are ready
  reduce,      ///< the sum of a bucket over the ranks
  gather,      ///< the exchange of a bucket's parameters
  wait,        ///< the compute stream waits for a bucket
  batch,       ///< the host waits for the loader
  evaluation,  ///< host, from begin to end
  checkpoint,  ///< host, from begin to end
  step,        ///< host: enqueues a step
};
[[nodiscard]] const char* name_of(SpanKind kind);

/// Records when work ran, for the timeline of some steps. A rank has one recorder, with memory for a fixed number of
/// spans, all allocated by the constructor. A Scope enqueues two clock readings on a stream: a host stream's worker
/// reads the clock (an inline stream: the caller); a CUDA stream records an event, which take() reads. A Scope
/// allocates nothing and does not wait. Outside the chosen steps and while a stream is captured no time is taken.
///
/// When a tool is attached to the process (Nsight Systems; a build with CUDA), a Scope is also a named range of that
/// tool around the enqueueing calls, and a point is a mark, in every step and also while a stream is captured. The tool
/// gets all names beforehand. A number accompanies a name: a bucket's bytes, or the host's step.
///
/// One thread calls it. It must outlive the streams' work.
class SpanRecorder {
 public:
  /// Lanes, in each of which spans follow each other. beside: calls of a layer that run on the side stream while others
  /// of Lane::compute run.
  enum class Lane : unsigned char { compute, communication, host, beside };

  struct Name {
    std::string text;
    SpanKind kind = SpanKind::forward;
    int bucket = -1;         ///< bucket of ready, reduce, gather
    std::int64_t bytes = 0;  ///< bytes of the bucket's gradients, in the type of their sum
  };
  /// Times in nanoseconds of now_ns(). A point (SpanKind::ready) ends when it begins.
  struct Span {
    int name = 0;  ///< index into names()
    Lane lane = Lane::compute;
    std::int64_t step = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  /// Records steps `first` to `last`, and the time between them. At most `capacity` spans are kept; later spans are
  /// counted as dropped. device: the streams' device; on a GPU each span gets two events. UsageError unless 1 <= first
  /// <= last.
  SpanRecorder(Device device, std::int64_t first, std::int64_t last, std::size_t capacity);
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;
  ~SpanRecorder();
  /// Makes a recorder that takes no times, for the attached tool; nullptr when no tool is attached.
  [[nodiscard]] static std::unique_ptr<SpanRecorder> for_tool();

  /// Nanoseconds of the steady clock, since an arbitrary point of the machine.
  [[nodiscard]] static std::int64_t now_ns() noexcept;

  /// Registers a name and returns its number. Call it before the steps, because it allocates.
  int add_name(Name name);
  [[nodiscard]] const std::vector<Name>& names() const { return names_; }

  void begin_step(std::int64_t step) noexcept { step_ = step; }  ///< the following spans belong to this step
  [[nodiscard]] bool recording() const noexcept { return step_ >= first_ && step_ <= last_; }

  /// A span, on the stack of the thread: spans are nested or follow each other. Without a recorder a Scope does
  /// nothing. A span without end(), as an exception leaves it, is not in the timeline; the tool's range ends either
  /// way.
  class Scope {
   public:
    /// Span of work on a stream: from the work that is enqueued next to the last work before end().
    Scope(SpanRecorder* recorder, Stream& stream, Lane lane, int name) : recorder_(recorder) {
      if (recorder_ != nullptr) {
        stream_ = &stream;
        span_ = recorder_->begin(stream_, lane, name, 0);
      }
    }
    /// Span of the calling thread, on Lane::host. number: for the tool; 0: none.
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
    Stream* stream_ = nullptr;  ///< nullptr: on the host
    int span_ = -1;
  };
  void point(Stream& stream, Lane lane, int name);

  /// Returns the spans that have both ends, in the order of begin(). Waits for a CUDA stream. Other streams must be
  /// idle; otherwise their open spans are left out.
  [[nodiscard]] std::vector<Span> take(Stream& compute);
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }
  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t last() const { return last_; }

 private:
  struct Record {
    int name = 0;
    Lane lane = Lane::compute;
    bool on_device = false;
    bool ended = false;  ///< on a device: end() has recorded its event
    std::int64_t step = 0;
    std::atomic<std::int64_t> begin_ns{0};  ///< 0: not yet. The thread that runs the stream's work writes it
    std::atomic<std::int64_t> end_ns{0};
  };
  explicit SpanRecorder(std::unique_ptr<detail::RangeMarker> ranges);
  /// Returns the number of the span, or -1, with which end() does nothing. Enters the tool's range last, so that an
  /// error of the stream leaves none open.
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
  std::vector<Event> events_;  ///< on a GPU two per slot
  std::size_t used_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t step_ = 0;
  std::vector<Name> names_;
  std::unique_ptr<detail::RangeMarker> ranges_;  ///< ranges of the tool; nullptr: none
};

}  // namespace lockstep
