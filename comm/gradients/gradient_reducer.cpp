#include <lockstep/comm/gradients/gradient_reducer.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

#include <lockstep/comm/gradients/bucket_breadcrumbs.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Measures the seconds between start() and stop() on a stream, summed over steps. Host streams read the clock in
/// enqueued work. CUDA streams record pairs of events, which are read some steps later without waiting. If the device
/// has not finished a pair when the pair is used again, the time of that pair is dropped.
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

  /// Returns the sum of the measured seconds. The stream must be idle.
  [[nodiscard]] double seconds() {
    for (Pair& pair : pairs_) {
      collect(pair);
    }
    return on_host_ ? host_->seconds : seconds_;
  }

 private:
  static constexpr std::size_t kPairs = 4;
  struct HostTime {  ///< shared with queued work, because the queued work may outlive the reducer after an error
    Clock::time_point started;
    double seconds = 0;
  };
  struct Pair {
    Event begin;
    Event end;
    bool used;  ///< true: the pair was recorded and is not yet read
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

struct BucketState {
  BucketState(const Bucket& b, const TensorView& view, const Stream& compute, const Stream& comm)
      : bucket(b),
        data(view),
        ready(compute.device()),
        done(comm.device()),
        time(comm.device()),
        gather_time(comm.device()),
        waited(compute.device()) {}

  Bucket bucket;
  TensorView data;  ///< this bucket's part of the arena, elements [begin, end)
  Event ready;      ///< recorded on the compute stream after the bucket's last write
  Event done;       ///< recorded on the communication stream after the bucket's sum or gather
  Stopwatch time;
  Stopwatch gather_time;
  Stopwatch waited;    ///< time that the compute stream waits for `done`
  int writes = 0;      ///< number of writes of the bucket's gradients in a step
  int pending = 0;     ///< number of writes that are still missing in this step
  int ready_name = 0;  ///< number from SpanRecorder::add_name(), as are the next two members
  int reduce_name = 0;
  int gather_name = 0;
};

}  // namespace

struct GradientReducer::Impl {
  Impl(Communicator& c, Stream& compute_stream, Stream& comm_stream, std::vector<GradientRange> g)
      : communicator(c),
        compute(compute_stream),
        comm(comm_stream),
        // True if `comm` is a worker's stream or a separate CUDA stream, whose work overlaps with the compute stream.
        // Otherwise, the caller waits for each bucket.
        overlapped(&compute_stream != &comm_stream && !comm_stream.is_inline()),
        gradients(std::move(g)),
        bucket_of(gradients.size()),
        pending(gradients.size()),
        waited_for_gather(compute_stream.device()),
        asked(compute_stream.device()),
        answered(comm_stream.device()) {}

  Communicator& communicator;
  Stream& compute;
  Stream& comm;
  bool overlapped;
  std::vector<GradientRange> gradients;
  std::vector<std::size_t> bucket_of;
  std::vector<int> pending;  ///< number of writes that are missing in this step, for each gradient
  std::vector<Bucket> buckets;
  std::optional<SumPlace> place;                    ///< arguments for `sum`; refers to `gradients` and `buckets`
  std::shared_ptr<BucketSum> sum;                   ///< object that sums a bucket; set after BucketSum::prepare()
  std::vector<std::unique_ptr<BucketState>> slots;  ///< one state for each bucket
  Stopwatch waited_for_gather;
  Event asked;     ///< recorded by sum() on the compute stream, after the values were written
  Event answered;  ///< recorded by sum() on the communication stream, after the sums were made
  std::size_t last_gather = 0;
  bool gathers = false;    ///< true between gather() and finish_gather()
  std::size_t next = 0;    ///< index of the first bucket that has not started
  std::size_t passed = 0;  ///< index of the first bucket for which the compute stream has not waited
  /// Last bucket started by an abandoned step; nullptr after the compute stream has waited for it.
  BucketState* left = nullptr;
  bool in_step = false;
  bool timed = true;  ///< true if this step is timed; a captured step is not
  std::int64_t steps = 0;
  SpanRecorder* recorder = nullptr;
  int wait_name = 0;  ///< number from SpanRecorder::add_name() for the spans of waits
  BucketBreadcrumbs* marks = nullptr;

  void check_buckets(const TensorView& arena) const {
    int gradient = 0;
    for (std::size_t k = 0; k < buckets.size(); ++k) {
      const Bucket& b = buckets[k];
      require<ShapeError>(b.first == gradient && b.last > b.first && b.last <= static_cast<int>(gradients.size()),
                          "gradient reducer: bucket ", k, " holds gradients [", b.first, ", ", b.last,
                          "), expected its first to be gradient ", gradient, " and its end at most ", gradients.size());
      require<ShapeError>(b.begin == gradients[static_cast<std::size_t>(b.first)].begin &&
                              b.end == gradients[static_cast<std::size_t>(b.last) - 1].end && b.begin <= b.end &&
                              b.begin >= 0 && b.end <= arena.numel(),
                          "gradient reducer: bucket ", k, " is [", b.begin, ", ", b.end,
                          "), expected the elements of its gradients in an arena of ", arena.numel());
      gradient = b.last;
    }
    require<ShapeError>(gradient == static_cast<int>(gradients.size()), "gradient reducer: buckets hold ", gradient,
                        " gradients, expected ", gradients.size());
  }

  /// Returns the division of each bucket between the ranks, counted from the bucket's begin. Checks `given` unless it
  /// is empty.
  [[nodiscard]] std::vector<Shards> shards_from(const std::vector<Shards>& given) const {
    require<ShapeError>(given.empty() || given.size() == buckets.size(), "gradient reducer: shards are given for ",
                        given.size(), " buckets, expected one for each of the ", buckets.size(), " buckets");
    std::vector<Shards> all;
    for (std::size_t k = 0; k < buckets.size(); ++k) {
      const Bucket& b = buckets[k];
      if (given.empty()) {
        all.push_back(shards_of(0, b.end - b.begin, communicator.size()));
        continue;
      }
      const Shards& each = given[k];
      require<ShapeError>(each.begin == b.begin && each.part >= 0 && each.rest == each.first_of(communicator.size()) &&
                              each.rest <= b.end,
                          "gradient reducer: the shards of bucket ", k, " begin at ", each.begin, " with ",
                          communicator.size(), " parts of ", each.part, ", expected parts that cover bucket [", b.begin,
                          ", ", b.end, ")");
      all.push_back({.begin = 0, .part = each.part, .rest = each.rest - b.begin, .end = b.end - b.begin});
    }
    return all;
  }

  void prepare(const std::shared_ptr<BucketSum>& given) {
    require<UsageError>(given->divides() || !place->divided,
                        "gradient reducer: ", given->name().empty() ? "an all-reduce" : "hook " + given->name(),
                        " with shards, expected gradients that all ranks get");
    try {
      if (!given->name().empty()) {  // a sum with a name computes, so it needs a context on the stream's device
        static_cast<void>(place->context());
      }
      given->prepare(*place);
    } catch (...) {
      try {
        comm.synchronize();  // waits, because release() frees memory that enqueued work uses
      } catch (...) {        // dropped, because the first failure is the one to report
      }
      given->release();
      throw;
    }
    sum = given;
  }

  void reduce(BucketState& slot) {
    const auto where = [&] { return concat("gradient hook ", sum->name(), ", bucket ", next); };
    try {
      sum->reduce(*place, static_cast<int>(next), slot.data);
    } catch (const PeerError&) {  // another rank is lost; `sum` itself has not failed
      throw;
    } catch (Error& error) {
      if (!sum->name().empty()) {
        error.annotate(where());
      }
      throw;
    } catch (const std::exception& error) {  // an exception of the program that is not a lockstep::Error
      if (sum->name().empty()) {
        throw;
      }
      throw Error(concat(where(), ": ", error.what()));
    }
  }

  /// Runs work() on the communication stream, after all work that is enqueued on the compute stream. Records `before`
  /// on the compute stream before work(), and `after` on the communication stream after work(). If `time` is not
  /// nullptr, it measures work(), and the recorder gets a span `name`.
  template <class Work>
  void on_comm(Event& before, Event& after, Stopwatch* time, int name, Work&& work) {
    if (&compute != &comm) {
      compute.record(before);
      comm.wait(before);
    }
    if (timed && time != nullptr) {
      time->start(comm);
    }
    SpanRecorder* const records = time != nullptr ? recorder : nullptr;
    SpanRecorder::Scope wait(overlapped ? nullptr : records, compute, SpanRecorder::Lane::compute, wait_name);
    SpanRecorder::Scope span(records, comm, SpanRecorder::Lane::communication, name);
    work();
    span.end();
    wait.end();
    if (timed && time != nullptr) {
      time->stop(comm);
    }
    if (&compute != &comm) {
      comm.record(after);
    }
  }

  void start(BucketState& slot) {
    if (recorder != nullptr) {
      recorder->point(compute, SpanRecorder::Lane::compute, slot.ready_name);
    }
    on_comm(slot.ready, slot.done, &slot.time, slot.reduce_name, [&] {
      if (marks != nullptr) {
        marks->before_sum(static_cast<int>(next));
      }
      reduce(slot);
      if (marks != nullptr) {
        marks->after_sum(static_cast<int>(next));
      }
    });
  }

  /// Makes the compute stream wait for `done`, an event of the communication stream. `time` measures the wait.
  void wait_for(const Event& done, Stopwatch& time) {
    if (&compute == &comm) {
      return;
    }
    if (timed) {
      time.start(compute);
    }
    SpanRecorder::Scope span(recorder, compute, SpanRecorder::Lane::compute, wait_name);
    compute.wait(done);
    span.end();
    if (timed) {
      time.stop(compute);
    }
  }

  /// Makes the compute stream wait for the buckets of this step that have started.
  void wait_for_started() {
    if (passed < next) {
      BucketState& last = *slots[next - 1];  // the communication stream runs in order, so this bucket is complete last
      wait_for(last.done, last.waited);
      passed = next;
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
                      " communicator works on inline streams only, expected an inline stream");
  s.buckets = std::move(buckets);
  s.check_buckets(arena);
  s.place.emplace(communicator, comm, s.gradients, s.buckets, s.shards_from(options.shards), !options.shards.empty(),
                  arena);
  for (std::size_t k = 0; k < s.buckets.size(); ++k) {
    const Bucket& b = s.buckets[k];
    auto slot = std::make_unique<BucketState>(b, arena.slice(0, b.begin, b.end), compute, comm);
    for (int i = b.first; i < b.last; ++i) {
      const GradientRange& g = s.gradients[static_cast<std::size_t>(i)];
      require<UsageError>(g.expected_writes >= 1, "gradient reducer: ", g.name, " expects ", g.expected_writes,
                          " writes, expected 1 or more");
      s.bucket_of[static_cast<std::size_t>(i)] = k;
      slot->writes += g.expected_writes;
    }
    s.slots.push_back(std::move(slot));
  }
  s.prepare(options.sum != nullptr ? options.sum : make_bucket_sum({}, {.divided = s.place->divided}));
}

GradientReducer::~GradientReducer() {
  try {
    impl_->comm.synchronize();
  } catch (...) {  // dropped, because the failure was already reported
  }
  impl_->sum->release();
}

const std::vector<GradientRange>& GradientReducer::gradients() const {
  return impl_->gradients;
}

bool GradientReducer::overlaps() const {
  return impl_->overlapped;
}

const std::vector<Bucket>& GradientReducer::buckets() const {
  return impl_->buckets;
}

DType GradientReducer::sent_as() const {
  return impl_->sum->sent_as(impl_->place->gradients.dtype);
}

std::int64_t GradientReducer::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& slot : impl_->slots) {
    bytes += static_cast<std::int64_t>(slot->data.bytes());
  }
  return bytes;
}

std::int64_t GradientReducer::sent_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < impl_->slots.size(); ++k) {
    const std::int64_t of_bucket = impl_->sum->sent_bytes(static_cast<int>(k));
    if (of_bucket < 0) {
      return -1;
    }
    bytes += of_bucket;
  }
  return bytes;
}

std::size_t GradientReducer::bytes() const {
  return impl_->sum->bytes();
}

void GradientReducer::begin_step() {
  Impl& s = *impl_;
  require<StateError>(
      !s.in_step,
      "gradient reducer: begin_step() is called in a step, expected the last step to be finished or given up before");
  for (std::size_t i = 0; i < s.gradients.size(); ++i) {
    s.pending[i] = s.gradients[i].expected_writes;
  }
  for (const auto& slot : s.slots) {
    slot->pending = slot->writes;
  }
  s.next = s.passed = 0;
  s.timed = !is_capturing(s.compute);
  s.in_step = true;
}

void GradientReducer::gradient_written(int index) {
  Impl& s = *impl_;
  require<StateError>(index >= 0 && index < static_cast<int>(s.gradients.size()), "gradient reducer: gradient ", index,
                      " was written, expected 0 to ", static_cast<int>(s.gradients.size()) - 1);
  const auto i = static_cast<std::size_t>(index);
  require<StateError>(s.in_step, "gradient reducer: ", s.gradients[i].name,
                      " was written outside a step, expected begin_step() before");
  require<StateError>(s.pending[i] > 0, "gradient reducer: ", s.gradients[i].name, " was written more than ",
                      s.gradients[i].expected_writes, " times in a step, expected as many writes");
  --s.pending[i];
  --s.slots[s.bucket_of[i]]->pending;
  while (s.next < s.slots.size() && s.slots[s.next]->pending == 0) {
    s.start(*s.slots[s.next]);
    ++s.next;
  }
}

int GradientReducer::started() const {
  return static_cast<int>(impl_->next);
}

void GradientReducer::wait_for_started() {
  Impl& s = *impl_;
  if (s.left != nullptr && !is_capturing(s.compute)) {  // a capture cannot wait for work from before the capture
    s.compute.wait(s.left->done);
    s.left = nullptr;
  }
  if (s.in_step) {
    s.wait_for_started();
  }
  finish_gather();
}

void GradientReducer::finish() {
  Impl& s = *impl_;
  require<StateError>(s.in_step, "gradient reducer: finish() outside a step, expected begin_step() before");
  if (s.next < s.slots.size()) {
    throw StateError(
        concat("gradient reducer: expected all gradients to be written in this step, not written: ", s.unwritten()));
  }
  s.wait_for_started();
  s.left = nullptr;  // compute stream has now also waited for the bucket of the abandoned step
  s.in_step = false;
  s.steps += s.timed ? 1 : 0;
}

void GradientReducer::gather(int bucket, const TensorView& arena) {
  Impl& s = *impl_;
  require<StateError>(s.place->divided && !s.in_step, "gradient reducer: gather() ",
                      s.place->divided ? "in a step" : "without shards", ", expected shards and finish() before");
  const auto k = static_cast<std::size_t>(bucket);
  require<UsageError>(k < s.slots.size(), "gradient reducer: bucket is ", bucket, ", expected 0 to ",
                      s.slots.size() - 1);
  BucketState& slot = *s.slots[k];
  const Shards& shards = s.place->shards[k];
  if (shards.part == 0) {
    return;
  }
  const TensorView data = arena.slice(0, slot.bucket.begin, slot.bucket.begin + shards.rest);
  s.on_comm(slot.ready, slot.done, &slot.gather_time, slot.gather_name,
            [&] { s.communicator.all_gather(s.comm, s.place->own(bucket, data), data); });
  s.last_gather = k;
  s.gathers = true;
}

void GradientReducer::finish_gather() {
  Impl& s = *impl_;
  if (s.gathers) {
    s.wait_for(s.slots[s.last_gather]->done, s.waited_for_gather);
    s.gathers = false;
  }
}

void GradientReducer::sum(const TensorView& values) {
  Impl& s = *impl_;
  require<StateError>(!s.in_step, "gradient reducer: sum() in a step, expected finish() before");
  s.on_comm(s.asked, s.answered, nullptr, 0, [&] { s.communicator.all_reduce(s.comm, values); });
  if (&s.compute != &s.comm) {
    s.compute.wait(s.answered);
  }
}

void GradientReducer::abandon_step() {
  Impl& s = *impl_;
  if (s.in_step && s.timed && &s.compute != &s.comm && s.passed < s.next) {
    s.left = s.slots[s.next - 1].get();
  }
  s.in_step = false;
  s.gathers = false;
}

void GradientReducer::record_into(SpanRecorder* recorder) {
  Impl& s = *impl_;
  require<StateError>(!s.in_step, "gradient reducer: record_into() in a step, expected finish() before");
  s.recorder = recorder;
  if (recorder == nullptr) {
    return;
  }
  s.wait_name = recorder->add_name({.text = "waiting for the communication", .kind = SpanKind::wait});
  for (std::size_t k = 0; k < s.slots.size(); ++k) {
    const int bucket = static_cast<int>(k);
    BucketState& slot = *s.slots[k];
    const std::int64_t bytes = slot.data.numel() * static_cast<std::int64_t>(size_of(sent_as()));
    slot.ready_name = recorder->add_name({concat("bucket ", k, " ready"), SpanKind::ready, bucket, bytes});
    slot.reduce_name = recorder->add_name({concat("bucket ", k), SpanKind::reduce, bucket, bytes});
    slot.gather_name = recorder->add_name({concat("parameters of bucket ", k), SpanKind::gather, bucket, bytes});
  }
}

void GradientReducer::mark_into(BucketBreadcrumbs* marks) {
  require<StateError>(!impl_->in_step, "gradient reducer: mark_into() in a step, expected finish() before");
  impl_->marks = marks;
}

ReducerStatistics GradientReducer::statistics() const {
  Impl& s = *impl_;
  ReducerStatistics result;
  result.steps = s.steps;
  for (std::size_t k = 0; k < s.slots.size(); ++k) {
    BucketState& slot = *s.slots[k];
    const double seconds = slot.time.seconds() + slot.gather_time.seconds();
    result.buckets.push_back({s.sum->sent_bytes(static_cast<int>(k)), seconds});
    result.total_s += seconds;
    result.exposed_s += slot.waited.seconds();
  }
  result.exposed_s = s.overlapped ? result.exposed_s + s.waited_for_gather.seconds() : result.total_s;
  return result;
}

}  // namespace lockstep::comm
