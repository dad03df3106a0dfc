#include <lockstep/comm/gradients/gradient_reducer.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <utility>

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds between two points of a stream, summed over steps. Host streams read the clock in enqueued work; CUDA
/// streams record event pairs, which are read some steps later without waiting. A pair that is still under way when
/// its turn comes again is dropped.
class Stopwatch {
 public:
  explicit Stopwatch(const Device& device) : on_host_(device == Device::cpu()) {
    if (!on_host_) {
      for (std::size_t i = 0; i < kPairs; ++i) {
        pairs_.push_back({Event(device, Event::Timing::on), Event(device, Event::Timing::on), false});
      }
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start(Stream& stream) {
    if (on_host_) {
      stream.enqueue([host = host_] { host->started = Clock::now(); });
      return;
    }
    current_ = (current_ + 1) % kPairs;
    collect(pairs_[current_]);
    pairs_[current_].used = false;
    stream.record(pairs_[current_].begin);
  }

  void stop(Stream& stream) {
    if (on_host_) {
      stream.enqueue(
          [host = host_] { host->seconds += std::chrono::duration<double>(Clock::now() - host->started).count(); });
      return;
    }
    stream.record(pairs_[current_].end);
    pairs_[current_].used = true;
  }

  /// Requires that the stream is idle.
  [[nodiscard]] double seconds() {
    for (Pair& pair : pairs_) {
      collect(pair);
    }
    return on_host_ ? host_->seconds : seconds_;
  }

  void reset() {
    for (Pair& pair : pairs_) {
      pair.used = false;
    }
    seconds_ = 0;
    host_->seconds = 0;
  }

 private:
  static constexpr std::size_t kPairs = 4;
  struct HostTime {  ///< shared with queued work, which may outlive the reducer after an error
    Clock::time_point started;
    double seconds = 0;
  };
  struct Pair {
    Event begin;
    Event end;
    bool used;  ///< recorded, not yet read
  };

  void collect(Pair& pair) {
    if (pair.used && pair.end.complete()) {
      seconds_ += pair.end.seconds_since(pair.begin);
      pair.used = false;
    }
  }

  bool on_host_;
  std::shared_ptr<HostTime> host_ = std::make_shared<HostTime>();
  std::vector<Pair> pairs_;
  std::size_t current_ = 0;
  double seconds_ = 0;
};

struct Slot {
  Slot(const Bucket& b, const TensorView& view, const Stream& compute, const Stream& comm)
      : bucket(b), data(view), ready(compute.device()), done(comm.device()), time(comm.device()) {}

  Bucket bucket;
  TensorView data;  ///< (end - begin), this bucket's part of the arena
  TensorView sent;  ///< (end - begin): the tensor that is reduced, data or its place in Impl::rounded
  Event ready;      ///< R: the last write of the bucket, on the compute stream
  Event done;       ///< D: the end of its all-reduce, on the communication stream
  Stopwatch time;
  int writes = 0;   ///< per step
  int pending = 0;  ///< of this step
};

}  // namespace

struct GradientReducer::Impl {
  Impl(Communicator& c, Stream& compute_stream, Stream& comm_stream, std::vector<GradientRange> g)
      : communicator(c),
        compute(compute_stream),
        comm(comm_stream),
        // A worker or a CUDA stream of its own; anything else makes the caller wait for each bucket.
        overlapped(&compute_stream != &comm_stream && !comm_stream.is_inline()),
        gradients(std::move(g)),
        bucket_of(gradients.size()),
        pending(gradients.size()),
        waited(compute_stream.device()) {}

  Communicator& communicator;
  Stream& compute;
  Stream& comm;
  bool overlapped;
  std::unique_ptr<Context> conversions;  ///< on the communication stream; for 16-bit buckets
  Tensor rounded;  ///< (largest bucket): used by one bucket after the other, in the stream's order
  std::vector<GradientRange> gradients;
  std::vector<std::size_t> bucket_of;
  std::vector<int> pending;  ///< writes that are still to come in this step, per gradient
  std::vector<Bucket> buckets;
  DType sent_as = DType::f32;
  std::vector<std::unique_ptr<Slot>> slots;  ///< one per bucket
  Stopwatch waited;
  std::size_t next = 0;  ///< the first bucket that has not started
  bool in_step = false;
  bool timed = true;  ///< whether this step is timed; a captured step is not
  std::int64_t steps = 0;

  void check_buckets(const TensorView& arena) const {
    int gradient = 0;
    for (std::size_t k = 0; k < buckets.size(); ++k) {
      const Bucket& b = buckets[k];
      require<ShapeError>(b.first == gradient && b.last > b.first && b.last <= static_cast<int>(gradients.size()),
                          "gradient reducer: bucket ", k, " holds gradients [", b.first, ", ", b.last,
                          "), expected to begin at ", gradient, " and to end by ", gradients.size());
      require<ShapeError>(b.begin == gradients[static_cast<std::size_t>(b.first)].begin &&
                              b.end == gradients[static_cast<std::size_t>(b.last) - 1].end && b.begin <= b.end &&
                              b.begin >= 0 && b.end <= arena.numel(),
                          "gradient reducer: bucket ", k, " is [", b.begin, ", ", b.end,
                          "), which is not where its gradients are in an arena of ", arena.numel());
      gradient = b.last;
    }
    require<ShapeError>(gradient == static_cast<int>(gradients.size()), "gradient reducer: buckets hold ", gradient,
                        " gradients, expected ", gradients.size());
  }

  /// Makes buckets travel as 16-bit numbers.
  void round_to(DType dtype, const TensorView& arena) {
    require<DTypeError>(arena.dtype == DType::f32 && size_of(dtype) == 2, "gradient reducer: reduce_dtype is ", dtype,
                        " for an arena of ", arena.dtype, ", expected bf16 or f16 for f32, or the arena's own type");
    require<DeviceError>(arena.device == comm.device(), "gradient reducer: the arena is on ", arena.device,
                         ", the communication stream on ", comm.device());
    if (comm.device() == Device::cpu()) {
      // A worker has one thread besides the compute threads; an inline stream uses the caller's threads.
      conversions =
          std::make_unique<CpuContext>(CpuContextOptions{.threads = comm.is_inline() ? 0 : 1, .stream = &comm});
    } else {
      conversions = std::make_unique<CudaContext>(comm.device(), CudaContextOptions{.stream = comm.cuda_handle()});
    }
    std::int64_t largest = 0;
    for (const Bucket& b : buckets) {
      largest = std::max(largest, b.end - b.begin);
    }
    rounded = Tensor::empty(*conversions, Shape{largest}, dtype);
  }

  void start(Slot& slot) {
    if (&compute != &comm) {
      compute.record(slot.ready);
      comm.wait(slot.ready);
    }
    if (timed) {
      slot.time.start(comm);
    }
    if (conversions != nullptr) {
      ops::strided_copy(*conversions, slot.data, slot.sent);
    }
    communicator.all_reduce(comm, slot.sent);
    if (conversions != nullptr) {
      ops::strided_copy(*conversions, slot.sent, slot.data);
    }
    if (timed) {
      slot.time.stop(comm);
    }
    if (&compute != &comm) {
      comm.record(slot.done);
    }
  }

  [[nodiscard]] std::string unwritten() const {
    constexpr int kNamed = 8;
    std::string names;
    int count = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (pending[i] > 0 && ++count <= kNamed) {
        names += concat(count > 1 ? ", " : "", gradients[i].name, " (", gradients[i].expected_writes - pending[i],
                        " of ", gradients[i].expected_writes, " writes)");
      }
    }
    return count > kNamed ? concat(names, " and ", count - kNamed, " more") : names;
  }
};

GradientReducer::GradientReducer(Communicator& communicator, Stream& compute, Stream& comm,
                                 std::vector<GradientRange> gradients, std::vector<Bucket> buckets,
                                 const TensorView& arena, const ReducerOptions& options)
    : impl_(std::make_unique<Impl>(communicator, compute, comm, std::move(gradients))) {
  Impl& s = *impl_;
  require<ShapeError>(arena.shape.rank() == 1 && arena.is_contiguous(), "gradient reducer: arena is ", arena,
                      ", expected one contiguous dimension");
  require<StateError>(communicator.can_overlap() || comm.is_inline(), "gradient reducer: the ", communicator.backend(),
                      " communicator works on inline streams only");
  s.buckets = std::move(buckets);
  s.check_buckets(arena);
  s.sent_as = arena.dtype;
  if (options.reduce_dtype != DType::f32 && options.reduce_dtype != arena.dtype) {
    s.round_to(options.reduce_dtype, arena);
    s.sent_as = options.reduce_dtype;
  }
  for (std::size_t k = 0; k < s.buckets.size(); ++k) {
    const Bucket& b = s.buckets[k];
    auto slot = std::make_unique<Slot>(b, arena.slice(0, b.begin, b.end), compute, comm);
    slot->sent = s.conversions != nullptr ? s.rounded.view().slice(0, 0, b.end - b.begin) : slot->data;
    for (int i = b.first; i < b.last; ++i) {
      const GradientRange& g = s.gradients[static_cast<std::size_t>(i)];
      require<UsageError>(g.expected_writes >= 1, "gradient reducer: ", g.name, " expects ", g.expected_writes,
                          " writes, expected 1 or more");
      s.bucket_of[static_cast<std::size_t>(i)] = k;
      slot->writes += g.expected_writes;
    }
    s.slots.push_back(std::move(slot));
  }
}

GradientReducer::~GradientReducer() {
  try {
    impl_->comm.synchronize();
  } catch (...) {  // the failure was already reported
  }
}

const std::vector<Bucket>& GradientReducer::buckets() const {
  return impl_->buckets;
}

DType GradientReducer::sent_as() const {
  return impl_->sent_as;
}

std::size_t GradientReducer::bytes() const {
  const TensorView& rounded = impl_->rounded.view();
  return rounded.given() ? rounded.bytes() : 0;
}

void GradientReducer::begin_step() {
  Impl& s = *impl_;
  require<StateError>(!s.in_step, "gradient reducer: begin_step() before the last step was finished or given up");
  for (std::size_t i = 0; i < s.gradients.size(); ++i) {
    s.pending[i] = s.gradients[i].expected_writes;
  }
  for (const auto& slot : s.slots) {
    slot->pending = slot->writes;
  }
  s.next = 0;
  s.timed = !is_capturing(s.compute);
  s.in_step = true;
}

void GradientReducer::gradient_written(int index) {
  Impl& s = *impl_;
  require<StateError>(index >= 0 && index < static_cast<int>(s.gradients.size()), "gradient reducer: gradient ", index,
                      " was written, expected 0 to ", static_cast<int>(s.gradients.size()) - 1);
  const auto i = static_cast<std::size_t>(index);
  require<StateError>(s.in_step, "gradient reducer: ", s.gradients[i].name, " was written outside a step");
  require<StateError>(s.pending[i] > 0, "gradient reducer: ", s.gradients[i].name, " was written more than ",
                      s.gradients[i].expected_writes, " times in a step");
  --s.pending[i];
  --s.slots[s.bucket_of[i]]->pending;
  while (s.next < s.slots.size() && s.slots[s.next]->pending == 0) {
    s.start(*s.slots[s.next]);
    ++s.next;
  }
}

void GradientReducer::finish() {
  Impl& s = *impl_;
  require<StateError>(s.in_step, "gradient reducer: finish() outside a step");
  if (s.next < s.slots.size()) {
    throw StateError(concat("gradient reducer: not written in this step: ", s.unwritten()));
  }
  if (&s.compute != &s.comm && !s.slots.empty()) {
    if (s.timed) {
      s.waited.start(s.compute);
    }
    s.compute.wait(s.slots.back()->done);  // the communication stream runs in order: the last bucket is done last
    if (s.timed) {
      s.waited.stop(s.compute);
    }
  }
  s.in_step = false;
  s.steps += s.timed ? 1 : 0;
}

void GradientReducer::abandon_step() {
  impl_->in_step = false;
}

ReducerStatistics GradientReducer::statistics() const {
  Impl& s = *impl_;
  ReducerStatistics result;
  result.steps = s.steps;
  for (const auto& slot : s.slots) {
    const double seconds = slot->time.seconds();
    result.buckets.push_back({static_cast<std::int64_t>(slot->sent.bytes()), seconds});
    result.total_s += seconds;
  }
  result.exposed_s = s.overlapped ? s.waited.seconds() : result.total_s;
  return result;
}

void GradientReducer::reset_statistics() {
  Impl& s = *impl_;
  s.steps = 0;
  s.waited.reset();
  for (const auto& slot : s.slots) {
    slot->time.reset();
  }
}

}  // namespace lockstep::comm
