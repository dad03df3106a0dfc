#include <lockstep/runtime/stream/span_recorder.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/detail/range_marker.hpp>
#include <lockstep/runtime/stream/graph.hpp>

namespace lockstep {

const char* name_of(SpanKind kind) {
  static constexpr const char* kNames[] = {"forward",    "backward",   "update", "input", "graph",
                                           "ready",      "reduce",     "gather", "wait",  "batch",
                                           "evaluation", "checkpoint", "step"};
  return kNames[static_cast<std::size_t>(kind)];
}

SpanRecorder::SpanRecorder(Device device, std::int64_t first, std::int64_t last, std::size_t capacity)
    : device_(device),
      first_(first),
      last_(last),
      capacity_(capacity),
      slots_(std::make_unique<Record[]>(capacity)),
      ranges_(detail::make_range_marker()) {
  require<UsageError>(first >= 1 && first <= last, "span recorder: steps ", first, " to ", last,
                      ", expected a first step of at least 1 and a last step that is not before it");
  if (device.kind == DeviceKind::cuda) {
    events_.reserve(2 * capacity);
    for (std::size_t i = 0; i < 2 * capacity; ++i) {
      events_.emplace_back(device, Event::Timing::on);
    }
  }
}

SpanRecorder::SpanRecorder(std::unique_ptr<detail::RangeMarker> ranges)
    : device_(Device::cpu()), first_(1), last_(0), capacity_(0), ranges_(std::move(ranges)) {}

SpanRecorder::~SpanRecorder() = default;

std::unique_ptr<SpanRecorder> SpanRecorder::for_tool() {
  std::unique_ptr<detail::RangeMarker> ranges = detail::make_range_marker();
  return ranges == nullptr ? nullptr : std::unique_ptr<SpanRecorder>(new SpanRecorder(std::move(ranges)));
}

std::int64_t SpanRecorder::now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int SpanRecorder::add_name(Name name) {
  names_.push_back(std::move(name));
  if (ranges_ != nullptr) {
    ranges_->add(names_.back());
  }
  return static_cast<int>(names_.size()) - 1;
}

int SpanRecorder::reserve(Lane lane, int name) {
  if (used_ == capacity_) {
    ++dropped_;
    return -1;
  }
  Record& slot = slots_[used_];
  slot.name = name;
  slot.lane = lane;
  slot.step = step_;
  return static_cast<int>(used_++);
}

int SpanRecorder::begin(Stream* stream, Lane lane, int name, std::int64_t number) {
  const int span = begin_time(stream, lane, name);
  if (ranges_ != nullptr) {
    ranges_->enter(name, number);
  }
  return span;
}

void SpanRecorder::leave_range() noexcept {
  if (ranges_ != nullptr) {
    ranges_->leave();
  }
}

void SpanRecorder::point(Stream& stream, Lane lane, int name) {
  end(&stream, begin_time(&stream, lane, name));
  if (ranges_ != nullptr) {
    ranges_->mark(name);
  }
}

int SpanRecorder::begin_time(Stream* stream, Lane lane, int name) {
  if (!recording() || (stream != nullptr && is_capturing(*stream))) {
    return -1;
  }
  const int span = reserve(lane, name);
  Record* slot = slot_of(span);
  if (slot == nullptr) {
    return span;
  }
  if (stream == nullptr) {
    slot->begin_ns = now_ns();
    return span;
  }
  slot->on_device = stream->device().kind == DeviceKind::cuda;
  if (slot->on_device) {
    stream->record(begin_event(static_cast<std::size_t>(span)));
  } else {
    stream->enqueue([slot] { slot->begin_ns.store(now_ns(), std::memory_order_release); });
  }
  return span;
}

void SpanRecorder::end(Stream* stream, int span) {
  Record* slot = slot_of(span);
  if (slot == nullptr) {
    return;
  }
  if (stream == nullptr) {
    slot->end_ns = now_ns();
    return;
  }
  slot->ended = true;
  if (slot->on_device) {
    stream->record(end_event(static_cast<std::size_t>(span)));
  } else if (names_[static_cast<std::size_t>(slot->name)].kind == SpanKind::ready) {
    stream->enqueue([slot] { slot->end_ns.store(slot->begin_ns, std::memory_order_release); });
  } else {
    stream->enqueue([slot] { slot->end_ns.store(now_ns(), std::memory_order_release); });
  }
}

std::vector<SpanRecorder::Span> SpanRecorder::take(Stream& compute) {
  // On a GPU, `anchor` is an event whose host time is known. The loop records ten events and waits for each of them.
  // The event with the shortest wait becomes the anchor, because its host time is exact within half of this wait.
  Event anchor(device_, Event::Timing::on);
  std::int64_t anchor_ns = 0;
  if (!events_.empty() && used_ > 0) {
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 10; ++i) {
      Event tried(device_, Event::Timing::on);
      const std::int64_t before = now_ns();
      compute.record(tried);
      tried.synchronize();
      const std::int64_t took = now_ns() - before;
      if (took < shortest) {
        shortest = took;
        anchor_ns = before + took / 2;
        anchor = std::move(tried);
      }
    }
  }
  const auto time_of = [&](const Event& event) {
    return anchor_ns - static_cast<std::int64_t>(std::llround(anchor.seconds_since(event) * 1e9));
  };
  std::vector<Span> spans;
  spans.reserve(used_);
  for (std::size_t i = 0; i < used_; ++i) {
    const Record& slot = slots_[i];
    Span span{.name = slot.name, .lane = slot.lane, .step = slot.step};
    if (slot.on_device) {
      if (!slot.ended || !begin_event(i).complete() || !end_event(i).complete()) {
        continue;
      }
      span.begin_ns = time_of(begin_event(i));
      const bool point = names_[static_cast<std::size_t>(slot.name)].kind == SpanKind::ready;
      span.end_ns = point ? span.begin_ns : std::max(span.begin_ns, time_of(end_event(i)));
    } else {
      span.end_ns = slot.end_ns.load(std::memory_order_acquire);
      span.begin_ns = slot.begin_ns.load(std::memory_order_acquire);
      if (span.end_ns == 0) {
        continue;
      }
    }
    spans.push_back(span);
  }
  return spans;
}

}  // namespace lockstep
