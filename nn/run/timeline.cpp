#include <lockstep/nn/run/timeline.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::nn {

namespace {

constexpr std::string_view kBegin = "{\"traceEvents\":[";
constexpr std::string_view kEnd = "\n],\"displayTimeUnit\":\"ms\"}\n";
// Names of the timeline's threads, one for each SpanRecorder::Lane. The id of a thread is its lane + 1.
constexpr std::array<const char*, 4> kThreads{"compute", "communication", "host", "weight gradients beside"};

struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Returns the intervals sorted by time, with overlapping intervals merged.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> result;
  for (const Interval& each : intervals) {
    if (!result.empty() && each.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, each.end);
    } else {
      result.push_back(each);
    }
  }
  return result;
}

/// Returns the total length of the overlap of two lists of merged intervals.
std::int64_t common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return sum;
}

/// Returns the parts of `a` that are outside of `b`. `a` and `b` are lists of merged intervals.
std::vector<Interval> without(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> result;
  std::size_t j = 0;
  for (const Interval& each : a) {
    std::int64_t from = each.begin;
    while (j < b.size() && b[j].end <= from) {
      ++j;
    }
    for (std::size_t k = j; k < b.size() && b[k].begin < each.end; ++k) {
      if (b[k].begin > from) {
        result.push_back({from, b[k].begin});
      }
      from = std::max(from, b[k].end);
    }
    if (from < each.end) {
      result.push_back({from, each.end});
    }
  }
  return result;
}

bool computes(SpanKind kind) {
  return kind == SpanKind::forward || kind == SpanKind::backward || kind == SpanKind::update;
}

bool communicates(SpanKind kind) {
  return kind == SpanKind::reduce || kind == SpanKind::gather;
}

/// Formats nanoseconds as microseconds with three decimals.
std::string microseconds(std::int64_t ns) {
  std::string fraction = std::to_string(ns % 1000);
  return concat(ns / 1000, '.', std::string(3 - fraction.size(), '0'), fraction);
}

// A rank sends its part of the timeline in three messages: sizes, numbers, texts. The numbers begin with kHead numbers
// about the whole part. Then kOfName numbers describe each name, and kOfSpan numbers describe each span.
constexpr std::size_t kHead = 4;
constexpr std::size_t kOfName = 3;
constexpr std::size_t kOfSpan = 5;

template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span<T>(values), Shape{static_cast<std::int64_t>(values.size())}};
}

void send(comm::Communicator& control, const RankTimeline& part) {
  std::vector<std::int64_t> numbers{part.dropped, part.clock_error_ns, static_cast<std::int64_t>(part.names.size()),
                                    static_cast<std::int64_t>(part.spans.size())};
  std::vector<std::uint8_t> texts;
  for (const SpanRecorder::Name& name : part.names) {
    numbers.insert(numbers.end(), {static_cast<std::int64_t>(name.kind), name.bucket, name.bytes});
    texts.insert(texts.end(), name.text.begin(), name.text.end());
    texts.push_back(0);
  }
  for (const SpanRecorder::Span& span : part.spans) {
    numbers.insert(numbers.end(),
                   {span.name, static_cast<std::int64_t>(span.lane), span.step, span.begin_ns, span.end_ns});
  }
  texts.push_back(0);
  std::vector<std::int64_t> sizes{static_cast<std::int64_t>(numbers.size()), static_cast<std::int64_t>(texts.size())};
  Stream stream = Stream::host_inline();
  control.send(stream, view_of(sizes), 0);
  control.send(stream, view_of(numbers), 0);
  control.send(stream, view_of(texts), 0);
}

RankTimeline receive(comm::Communicator& control, int rank) {
  Stream stream = Stream::host_inline();
  std::vector<std::int64_t> sizes(2);
  control.recv(stream, view_of(sizes), rank);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(sizes[0]));
  std::vector<std::uint8_t> texts(static_cast<std::size_t>(sizes[1]));
  control.recv(stream, view_of(numbers), rank);
  control.recv(stream, view_of(texts), rank);
  RankTimeline part{.rank = rank, .dropped = numbers[0], .clock_error_ns = numbers[1]};
  part.names.resize(static_cast<std::size_t>(numbers[2]));
  part.spans.resize(static_cast<std::size_t>(numbers[3]));
  const std::int64_t* next = numbers.data() + kHead;
  auto text = texts.cbegin();
  for (SpanRecorder::Name& name : part.names) {
    const auto end = std::find(text, texts.cend(), 0);
    name = {std::string(text, end), static_cast<SpanKind>(next[0]), static_cast<int>(next[1]), next[2]};
    text = end + 1;
    next += kOfName;
  }
  for (SpanRecorder::Span& span : part.spans) {
    span = {.name = static_cast<int>(next[0]),
            .lane = static_cast<SpanRecorder::Lane>(next[1]),
            .step = next[2],
            .begin_ns = next[3],
            .end_ns = next[4]};
    next += kOfSpan;
  }
  return part;
}

}  // namespace

RankTimeline rank_timeline(int rank, const SpanRecorder& recorder, std::vector<SpanRecorder::Span> spans,
                           const comm::AlignedClock& clock) {
  for (SpanRecorder::Span& span : spans) {
    span.begin_ns = clock.at_rank0(span.begin_ns);
    span.end_ns = clock.at_rank0(span.end_ns);
  }
  return {.rank = rank,
          .names = recorder.names(),
          .spans = std::move(spans),
          .dropped = recorder.dropped(),
          .clock_error_ns = clock.error_ns()};
}

void gather_timelines(comm::Communicator& control, const RankTimeline& own,
                      const std::function<void(const RankTimeline&)>& take) {
  if (control.rank() != 0) {
    send(control, own);
    return;
  }
  std::exception_ptr failure;
  for (int rank = 0; rank < control.size(); ++rank) {
    const RankTimeline part = rank == 0 ? own : receive(control, rank);
    try {
      if (failure == nullptr) {
        take(part);
      }
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

void TimelineFile::start(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (std::filesystem::exists(there)) {
    require<UsageError>(std::filesystem::is_regular_file(there), path,
                        ": is no file, expected a timeline to replace, or nothing");
    std::string begin(kBegin.size(), '\0');
    std::ifstream in(path, std::ios::binary);
    require<FileError>(in.is_open(), path,
                       ": cannot be opened, expected a timeline that this user may read, or nothing");
    in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    require<UsageError>(in.gcount() == 0 || begin == kBegin, path,
                        ": is another file than a timeline, expected a timeline to replace, or nothing");
  }
  replace_file(path, concat(kBegin, kEnd));
}

TimelineFile::TimelineFile(std::string path, std::int64_t origin_ns)
    : path_(std::move(path)),
      temporary_(temporary_beside(path_)),
      out_(temporary_),
      origin_ns_(origin_ns),
      text_(kBegin) {}

void TimelineFile::put(const std::string& event) {
  text_ += concat(empty_ ? "\n" : ",\n", event);
  empty_ = false;
  constexpr std::size_t kAtOnce = 1 << 20;
  if (text_.size() >= kAtOnce) {
    out_.write(text_);
    text_.clear();
  }
}

void TimelineFile::name(const char* what, int rank, int thread, const std::string& name) {
  put(concat(R"({"name":")", what, R"(","ph":"M","pid":)", rank, R"(,"tid":)", thread, R"(,"args":{"name":)",
             Json(name).text(), "}}"));
}

void TimelineFile::add(const RankTimeline& part) {
  name("process_name", part.rank, 0, concat("rank ", part.rank));
  const bool beside = std::any_of(part.spans.begin(), part.spans.end(),
                                  [](const auto& span) { return span.lane == SpanRecorder::Lane::beside; });
  for (std::size_t lane = 0; lane < kThreads.size() - (beside ? 0 : 1); ++lane) {
    name("thread_name", part.rank, static_cast<int>(lane) + 1, kThreads[lane]);
  }
  std::vector<std::string> heads;  // for each span name, the beginning of its events' JSON text
  for (const SpanRecorder::Name& name : part.names) {
    heads.push_back(
        concat(R"({"name":)", Json(name.text).text(), R"(,"cat":")", name_of(name.kind), R"(","pid":)", part.rank));
  }
  for (const SpanRecorder::Span& span : part.spans) {
    const SpanRecorder::Name& name = part.names[static_cast<std::size_t>(span.name)];
    const std::int64_t begin = std::max<std::int64_t>(0, span.begin_ns - origin_ns_);
    const std::int64_t end = std::max(begin, span.end_ns - origin_ns_);
    put(concat(heads[static_cast<std::size_t>(span.name)], R"(,"tid":)", static_cast<int>(span.lane) + 1, R"(,"ts":)",
               microseconds(begin),
               name.kind == SpanKind::ready ? R"(,"ph":"i","s":"t")"
                                            : concat(R"(,"ph":"X","dur":)", microseconds(end - begin)),
               R"(,"args":{"step":)", span.step,
               name.bucket >= 0 ? concat(R"(,"bucket":)", name.bucket, R"(,"bytes":)", name.bytes) : std::string(),
               "}}"));
  }
}

void TimelineFile::finish() {
  out_.write(concat(text_, kEnd));
  out_.finish();
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
    throw WriteError(
        concat(path_, ": cannot be replaced: ", error.message(), "; expected a file that this user may replace"));
  }
}

void TimelineSummary::add(const RankTimeline& part) {
  std::vector<Interval> computing;
  std::vector<Interval> waiting;
  std::vector<Interval> collectives;
  for (const SpanRecorder::Span& span : part.spans) {
    const SpanRecorder::Name& name = part.names[static_cast<std::size_t>(span.name)];
    const Interval interval{span.begin_ns, span.end_ns};
    if (computes(name.kind)) {
      computing.push_back(interval);
    } else if (name.kind == SpanKind::wait) {
      waiting.push_back(interval);
    } else if (communicates(name.kind)) {
      collectives.push_back(interval);
    }
    graphs_ = graphs_ || name.kind == SpanKind::graph;
    if (name.kind == SpanKind::ready) {
      arrivals_[{span.step, name.bucket}].push_back({.rank = part.rank, .ready_ns = span.begin_ns});
    } else if (name.kind == SpanKind::reduce) {  // the reduce span of a bucket comes after its ready span
      auto& arrivals = arrivals_[{span.step, name.bucket}];
      if (!arrivals.empty() && arrivals.back().rank == part.rank) {
        arrivals.back().begin_ns = span.begin_ns;
      }
    }
    first_ = spans_ == 0 ? span.step : std::min(first_, span.step);
    last_ = std::max(last_, span.step);
    ++spans_;
  }
  std::int64_t total = 0;
  for (const Interval& each : collectives) {
    total += each.end - each.begin;
  }
  const std::int64_t hidden =
      common(merged(std::move(collectives)), without(merged(std::move(computing)), merged(std::move(waiting))));
  communication_.push_back({.total_s = static_cast<double>(total) / 1e9,
                            .hidden_s = static_cast<double>(hidden) / 1e9,
                            .exposed_s = static_cast<double>(total - hidden) / 1e9});
  dropped_ += part.dropped;
  clock_error_ns_ = std::max(clock_error_ns_, part.clock_error_ns);
}

std::vector<TimelineSummary::WaitedFor> TimelineSummary::waited_for() const {
  std::vector<WaitedFor> result(communication_.size());
  for (const auto& [bucket, arrivals] : arrivals_) {
    if (arrivals.size() < 2 || arrivals.size() != result.size() ||
        std::any_of(arrivals.begin(), arrivals.end(), [](const Arrival& each) { return !each.begin_ns; })) {
      continue;
    }
    const auto last = std::max_element(arrivals.begin(), arrivals.end(),
                                       [](const Arrival& a, const Arrival& b) { return a.ready_ns < b.ready_ns; });
    const auto first = std::min_element(arrivals.begin(), arrivals.end(),
                                        [](const Arrival& a, const Arrival& b) { return *a.begin_ns < *b.begin_ns; });
    WaitedFor& waited = result[static_cast<std::size_t>(last->rank)];
    ++waited.times;
    waited.seconds += static_cast<double>(std::max<std::int64_t>(0, *last->begin_ns - *first->begin_ns)) / 1e9;
  }
  return result;
}

TimelineSummary::Communication TimelineSummary::mean_of_a_step() const {
  Communication mean;
  const double parts = static_cast<double>(communication_.size()) * static_cast<double>(steps());
  for (const Communication& each : communication_) {
    mean.total_s += parts > 0 ? each.total_s / parts : 0;
    mean.hidden_s += parts > 0 ? each.hidden_s / parts : 0;
    mean.exposed_s += parts > 0 ? each.exposed_s / parts : 0;
  }
  return mean;
}

std::string TimelineSummary::text(const std::string& file) const {
  constexpr const char* kIndent = "             ";
  if (spans_ == 0) {
    return concat("  trace      ", file, ": no step was recorded, as the run ended before (--trace-steps)\n");
  }
  std::string text = concat(
      "  trace      ", file, ": steps ", first_, " to ", last_, ", ",
      counted(static_cast<std::int64_t>(communication_.size()), "rank"), ", ", counted(spans_, "span"),
      dropped_ > 0 ? concat(" (no room for ", dropped_, ")") : std::string(),
      communication_.size() > 1 ? concat(", clocks within ", seconds_text(static_cast<double>(clock_error_ns_) / 1e9))
                                : std::string(),
      '\n');
  if (graphs_) {
    return concat(text, kIndent,
                  "steps ran as a CUDA graph, one span each; --cuda-graph off shows layers and buckets\n");
  }
  const Communication mean = mean_of_a_step();
  text +=
      concat(kIndent, "communication ", seconds_text(mean.total_s), " a step and rank: ", seconds_text(mean.hidden_s),
             " hidden behind computation, ", seconds_text(mean.exposed_s), " exposed\n");
  const std::vector<WaitedFor> waited = waited_for();
  std::int64_t times = 0;
  for (const WaitedFor& each : waited) {
    times += each.times;
  }
  if (times > 0) {
    const auto most = std::max_element(waited.begin(), waited.end(),
                                       [](const WaitedFor& a, const WaitedFor& b) { return a.seconds < b.seconds; });
    text += concat(kIndent, "waited most for rank ", most - waited.begin(), ": ",
                   seconds_text(most->seconds / static_cast<double>(steps())),
                   " a step; its bucket was the last ready ", most->times, " of ", counted(times, "time"), '\n');
  }
  return text;
}

Json::Object TimelineSummary::json() const {
  const Communication mean = mean_of_a_step();
  const std::vector<WaitedFor> waited = waited_for();
  Json::Array ranks;
  for (std::size_t rank = 0; rank < waited.size(); ++rank) {
    ranks.emplace_back(Json::Object{{"communication_s", communication_[rank].total_s},
                                    {"hidden_s", communication_[rank].hidden_s},
                                    {"exposed_s", communication_[rank].exposed_s},
                                    {"last_ready", waited[rank].times},
                                    {"waited_for_s", waited[rank].seconds}});
  }
  return {{"first_step", first_},
          {"last_step", last_},
          {"spans", spans_},
          {"dropped", dropped_},
          {"clock_error_s", static_cast<double>(clock_error_ns_) / 1e9},
          {"communication_s", mean.total_s},
          {"hidden_s", mean.hidden_s},
          {"exposed_s", mean.exposed_s},
          {"ranks", ranks}};
}

}  // namespace lockstep::nn
