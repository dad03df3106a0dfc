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

/// What a span of a timeline is.
enum class SpanKind : unsigned char {
  forward,     ///< a call of a layer
  backward,    ///< a call of a layer
  update,      ///< the optimizer's
  input,       ///< the batch on its way to the device
  graph,       ///< a captured step as one
  ready,       ///< not a span but a point: the gradients of a bucket are there
  reduce,      ///< the sum of a bucket over the ranks
  gather,      ///< the exchange of a bucket's parameters
  wait,        ///< the compute stream waits for a bucket
  batch,       ///< the host waits for the loader
  evaluation,  ///< the host, from begin to end
  checkpoint,  ///< the host, from begin to end
  step,        ///< the host, which enqueues a step
};
[[nodiscard]] const char* name_of(SpanKind kind);

/// Records when work ran, for the timeline of some steps: one for a rank, with memory for a fixed number of spans, all
/// allocated by the constructor. A Scope enqueues two looks at the clock on a stream: a host stream's worker reads it
/// (an inline stream: the caller), a CUDA stream records an event, which take() reads. That allocates nothing and does
/// not wait. Outside the chosen steps and while a stream is captured no time is taken.
///
/// Where a tool has attached itself to the process (Nsight Systems; a build with CUDA), a Scope is also a named range
/// of that tool, and a point a mark, in every step and while a stream is captured: around the calls that enqueue. The
/// tool is given all names beforehand. A number stands beside a name: of a bucket its bytes, of the host's the step.
///
/// One thread calls it. It must outlive the work of the streams.
class SpanRecorder {
 public:
  /// Where spans lie one after the other.
  /// beside: calls of a layer that run while others of Lane::compute do.
  enum class Lane : unsigned char { compute, communication, host, beside };

  struct Name {
    std::string text;
    SpanKind kind = SpanKind::forward;
    int bucket = -1;         ///< of ready, reduce, gather
    std::int64_t bytes = 0;  ///< of the bucket's gradients, in the type of their sum
  };
  /// Times in nanoseconds of now_ns(). A point (SpanKind::ready) ends when it begins.
  struct Span {
    int name = 0;  ///< index into names()
    Lane lane = Lane::compute;
    std::int64_t step = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  /// Records the steps from `first` to `last`, and what happens between them. At most `capacity` spans are kept; what
  /// comes later is counted as dropped. device: of the streams; on a GPU two events a span are made. UsageError unless
  /// 1 <= first <= last.
  SpanRecorder(Device device, std::int64_t first, std::int64_t last, std::size_t capacity);
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;
  ~SpanRecorder();
  /// One that takes no times, for the tool that is attached; nullptr where none is.
  [[nodiscard]] static std::unique_ptr<SpanRecorder> for_tool();

  /// Nanoseconds of the steady clock, since an arbitrary point of the machine.
  [[nodiscard]] static std::int64_t now_ns() noexcept;

  /// Gives a name a number, before the steps: this allocates.
  int add_name(Name name);
  [[nodiscard]] const std::vector<Name>& names() const { return names_; }

  void begin_step(std::int64_t step) noexcept { step_ = step; }  ///< what follows belongs to this step
  [[nodiscard]] bool recording() const noexcept { return step_ >= first_ && step_ <= last_; }

  /// A span, on the stack of the thread: spans lie within each other or beside each other. Without a recorder it does
  /// nothing. A span without end(), as an exception leaves it, is not in the timeline; the tool's range ends either
  /// way.
  class Scope {
   public:
    /// Of work on a stream: from what is enqueued next to what was enqueued last before end().
    Scope(SpanRecorder* recorder, Stream& stream, Lane lane, int name) : recorder_(recorder) {
      if (recorder_ != nullptr) {
        stream_ = &stream;
        span_ = recorder_->begin(stream_, lane, name, 0);
      }
    }
    /// Of the calling thread, on Lane::host. number: for the tool; 0: none.
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
    Stream* stream_ = nullptr;  ///< none: on the host
    int span_ = -1;
  };
  void point(Stream& stream, Lane lane, int name);

  /// The spans that have both ends, in the order of begin(). Waits for a CUDA stream; other streams must be idle or
  /// their open spans are left out.
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
    std::atomic<std::int64_t> begin_ns{0};  ///< 0: not yet. Written by whoever runs the stream's work
    std::atomic<std::int64_t> end_ns{0};
  };
  explicit SpanRecorder(std::unique_ptr<detail::RangeMarker> ranges);
  /// The number of the span, or -1, with which end() does nothing. Enters the tool's range last, so that an error of
  /// the stream leaves none open.
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
  std::vector<Event> events_;  ///< on a GPU
  std::size_t used_ = 0;
  std::int64_t dropped_ = 0;
  std::int64_t step_ = 0;
  std::vector<Name> names_;
  std::unique_ptr<detail::RangeMarker> ranges_;  ///< of the tool; nullptr: none
};

}  // namespace lockstep
