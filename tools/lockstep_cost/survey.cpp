#include "tools/lockstep_cost/survey.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <lockstep/comm/cost/cost_fit.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "measure/collectives.hpp"
#include "measure/copy_paths.hpp"

namespace lockstep::tools {

namespace {

constexpr int kRounds = 3;
constexpr double kMostTime = 1.3;  // a path that has used this multiple of its share of time skips larger sizes
constexpr std::size_t kLeastSizes = 4;
constexpr double kSampleSeconds = 50e-6;  // least seconds of a timed value; shorter calls are timed in groups
constexpr std::int64_t kCheckBytes = 4096;
constexpr std::int64_t kPairBytes = std::int64_t{1} << 20;
constexpr int kMostPairRanks = 16;  // greatest number of ranks whose pairs are measured (120 pairs)

using measure::Clock;
using measure::seconds_since;

class Survey {
 public:
  Survey(comm::Session& session, const SurveyOptions& options, const std::function<void(const Progress&)>& progress)
      : session_(session), options_(options), progress_(progress), sizes_(survey_sizes(options.max_bytes)) {}

  comm::CostFile run() {
    file_.ranks = session_.size();
    file_.nodes = session_.nodes();
    const std::vector<measure::CopyPath> copies = wanted_copies();
    const bool several = session_.size() > 1;
    // The messages between all pairs of ranks together get as much time as one curve.
    curves_ = static_cast<int>(copies.size()) + (several ? 3 : 0) + (several && on_gpu() && comm::has_nccl() ? 1 : 0);
    share_ = options_.seconds / curves_;
    begin_ = Clock::now();

    for (const measure::CopyPath& path : copies) {
      copy(path);
    }
    if (several) {
      messages();
      if (on_gpu()) {
        messages_of_gpus();
      }
    } else {
      file_.left_out.emplace_back("All-reduce and messages: they need at least 2 ranks (mpirun -np 2 lockstep-cost).");
    }
    if (!options_.gpu_missing.empty()) {
      file_.left_out.push_back(options_.gpu_missing);
    }
    limits();
    return std::move(file_);
  }

 private:
  [[nodiscard]] bool on_gpu() const { return !(options_.device == Device::cpu()); }

  /// Returns the most important copy paths. bench_copy measures all paths.
  [[nodiscard]] std::vector<measure::CopyPath> wanted_copies() const {
    std::vector<Device> gpus;
    if (on_gpu()) {
      gpus.push_back(options_.device);
      if (options_.peer) {
        gpus.push_back(*options_.peer);
      }
    }
    std::vector<measure::CopyPath> wanted;
    for (const measure::CopyPath& path : measure::copy_paths(gpus)) {
      const bool on_host = path.mover == measure::Mover::memcpy || path.mover == measure::Mover::copy ||
                           path.mover == measure::Mover::streaming;
      const bool mine = path.mover == measure::Mover::copy_engine &&
                        (path.from.device == options_.device || path.from.device == Device::cpu()) &&
                        (path.from.device == options_.device || path.to.device == options_.device);
      if (!path.both_ways && (on_host || mine)) {
        wanted.push_back(path);
      }
    }
    return wanted;
  }

  [[nodiscard]] std::vector<int> pair_ranks() const {
    std::vector<int> ranks;
    const int count = std::min(session_.size(), kMostPairRanks);
    for (int i = 0; i < count; ++i) {
      ranks.push_back(static_cast<int>(std::int64_t{i} * session_.size() / count));
    }
    return ranks;
  }

  using MeasureSize = std::function<measure::Measurement(std::int64_t, const measure::MeasureOptions&)>;

  /// Measures one curve: the times of one path at all sizes. Goes through the sizes several times, so that a busy
  /// second of the machine does not affect a single size only.
  void curve(comm::CostPath path, const MeasureSize& measure) {
    const Clock::time_point begin = Clock::now();
    measure::MeasureOptions options;
    options.min_iterations = 2;
    options.sample_seconds = kSampleSeconds;
    std::vector<measure::Samples> all;
    for (int round = 0; round < kRounds; ++round) {
      // This call is a warm-up: the processor leaves its idle state, and the caches lose the bytes of the last round's
      // largest size.
      options.target_seconds = share_ / kRounds * 0.1;
      (void)measure(sizes_.front(), options);
      // Plans only 65 % of the round for timed calls, because each size also has a warm-up.
      options.target_seconds = share_ / kRounds * 0.65 / static_cast<double>(sizes_.size());
      const std::size_t wanted = round == 0 ? sizes_.size() : all.size();
      for (std::size_t i = 0; i < wanted; ++i) {
        const double elapsed = comm::all_gather_value(session_.control(), seconds_since(begin))[0];
        const bool late = elapsed > share_ * (round == 0 ? kMostTime : 1.0);
        if (late && i >= kLeastSizes && round == 0) {
          file_.left_out.push_back(concat(path.text, " from ", bytes_text(static_cast<double>(sizes_[i])), " on: ",
                                          digits(elapsed, 1), " s went into smaller sizes; --seconds gives more."));
        }
        if (late && (i >= kLeastSizes || round > 0)) {
          break;
        }
        step(round, concat(path.text, ", ", bytes_text(static_cast<double>(sizes_[i]))));
        const measure::Samples samples = measure(sizes_[i], options).samples;
        if (round == 0) {
          all.push_back(samples);
        } else {
          all[i].seconds.insert(all[i].seconds.end(), samples.seconds.begin(), samples.seconds.end());
          all[i].calls = std::max(all[i].calls, samples.calls);
        }
      }
    }
    curves_done_ += 1;
    std::vector<comm::TimedSize> points;
    for (std::size_t i = 0; i < all.size(); ++i) {
      path.points.push_back(cost_point(sizes_[i], all[i]));
      points.push_back({static_cast<double>(sizes_[i]), all[i].median()});
    }
    const comm::CostFitOptions fit_options{.noise = noise_of(all)};
    path.model = comm::fit_cost(points, fit_options);
    path.held_out = comm::held_out_errors(points, fit_options);
    file_.paths.push_back(std::move(path));
  }

  void copy(const measure::CopyPath& path) {
    std::optional<measure::CopyBench> bench;
    const comm::CostPath described = description(path);
    const auto make = [&] { bench.emplace(path, sizes_.back(), options_.threads); };
    if (described.name == "copy/peer") {
      // The peer GPU may have no free memory. In this case the survey leaves out the copies between GPUs.
      if (!works("Copies between GPUs", make)) {
        return;
      }
    }
    session_.agree([&] {
      if (!bench) {
        make();
      }
      bench->check({.bytes = std::min(kCheckBytes, sizes_.back())});
    });
    curve(described, [&](std::int64_t bytes, const measure::MeasureOptions& options) {
      return bench->measure(session_.control(), {.bytes = bytes}, options);
    });
  }

  /// Returns true if make() succeeds on all ranks. If not, the report says why the path `what` is left out. Collective.
  bool works(const char* what, const std::function<void()>& make) {
    std::string why;
    try {
      make();
    } catch (const Error& e) {
      why = e.what();
    }
    const std::vector<std::string> reasons = comm::all_gather_text(session_.control(), why);
    const auto failed = std::find_if(reasons.begin(), reasons.end(), [](const std::string& r) { return !r.empty(); });
    if (failed != reasons.end()) {
      file_.left_out.push_back(concat(what, ": rank ", failed - reasons.begin(), ": ", *failed));
      curves_done_ += 1;
    }
    return failed == reasons.end();
  }

  [[nodiscard]] comm::CostPath description(const measure::CopyPath& path) const {
    const std::string threads = concat(options_.threads, options_.threads == 1 ? " thread" : " threads");
    switch (path.mover) {
      case measure::Mover::memcpy:
        return {.name = "copy/host/memcpy", .text = "memcpy"};
      case measure::Mover::streaming:
        return {.name = "copy/host/streaming", .text = concat("streaming, ", threads)};
      case measure::Mover::copy:
        return {.name = "copy/host/copy", .text = concat("copy(), ", threads)};
      default:
        break;
    }
    if (!(path.from.device == path.to.device) && path.from.memory == path.to.memory) {
      return {.name = "copy/peer", .text = "GPU to GPU"};
    }
    const auto word = [](const measure::CopyEnd& end) {
      return end.memory == measure::Memory::device ? "device"
                                                   : (end.memory == measure::Memory::pinned ? "pinned" : "pageable");
    };
    return {.name = concat("copy/", word(path.from), "_to_", word(path.to)),
            .text = concat(word(path.from), " to ", word(path.to))};
  }

  void messages() {
    CpuContext context({.threads = options_.threads});
    std::optional<measure::CollectiveBench> bench;
    session_.agree([&] { bench.emplace(session_.grad(), context, context.stream(), sizes_.back()); });
    all_reduce(*bench, {.name = comm::all_reduce_name(comm::GradientPath::host), .text = "all-reduce"});

    // Measures messages of all sizes between ranks 0 and 1, then messages of one size between every two ranks. The two
    // ranks send in turns, so a call is one message in one direction.
    const measure::CollectiveCase message{.collective = measure::Collective::send_recv, .from = 0, .to = 1};
    session_.agree([&] { bench->check(message, std::min(kCheckBytes, sizes_.back())); });
    curve({.name = "send_recv/0_1", .text = "message, ranks 0 and 1"},
          [&](std::int64_t bytes, const measure::MeasureOptions& options) {
            return bench->measure(session_.control(), message, bytes, options);
          });
    const std::vector<int> ranks = pair_ranks();
    if (ranks.size() < static_cast<std::size_t>(session_.size())) {
      file_.left_out.push_back(concat("Pairs: ", ranks.size(), " ranks of ", session_.size(),
                                      ", evenly chosen; every two of all would take too long."));
    }
    const std::size_t pairs = ranks.size() * (ranks.size() - 1) / 2;
    file_.pairs.bytes = std::min(kPairBytes, sizes_.back());
    file_.pairs.ranks = ranks;
    file_.pairs.seconds.assign(ranks.size(), std::vector<double>(ranks.size(), 0));
    measure::MeasureOptions options;
    options.target_seconds = share_ / static_cast<double>(pairs) * 0.5;
    options.sample_seconds = kSampleSeconds;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (std::size_t j = i + 1; j < ranks.size(); ++j) {
        step(0, concat("ranks ", ranks[i], " and ", ranks[j]));
        const measure::CollectiveCase pair{
            .collective = measure::Collective::send_recv, .from = ranks[i], .to = ranks[j]};
        const double seconds = bench->measure(session_.control(), pair, file_.pairs.bytes, options).samples.median();
        file_.pairs.seconds[i][j] = file_.pairs.seconds[j][i] = seconds;
      }
    }
  }

  void all_reduce(measure::CollectiveBench& bench, comm::CostPath path) {
    const measure::CollectiveCase item{.collective = measure::Collective::all_reduce};
    session_.agree([&] { bench.check(item, std::min(kCheckBytes, sizes_.back())); });
    path.bus_factor = measure::bus_factor(item.collective, session_.size()).value_or(0);
    curve(std::move(path), [&](std::int64_t bytes, const measure::MeasureOptions& options) {
      return bench.measure(session_.control(), item, bytes, options);
    });
  }

  /// Measures all-reduces between GPUs, on the stream that reduces gradients.
  void messages_of_gpus() {
    const char* const what = "All-reduces between GPUs";
    if (!comm::has_nccl()) {
      file_.left_out.push_back(concat(what, ": this build has no NCCL."));
      return;
    }
    std::optional<comm::GpuRanks> gpus;
    if (!works(what, [&] {
          gpus.emplace(session_, comm::RankDevice{.device = options_.device, .shared = options_.shares_device});
        })) {
      return;
    }
    std::optional<CudaContext> context;
    std::optional<measure::CollectiveBench> bench;
    session_.agree([&] {
      context.emplace(options_.device);
      bench.emplace(gpus->grad(), *context, gpus->communication_stream(), sizes_.back());
    });
    all_reduce(*bench, {.name = comm::all_reduce_name(comm::GradientPath::nccl), .text = "all-reduce between GPUs"});
  }

  /// Adds to each path its physical limit, if the limit is known.
  void limits() {
    double memory = 0;
    for (const comm::CostPath& path : file_.paths) {
      if (path.name == "copy/host/streaming") {
        memory = static_cast<double>(path.points.back().bytes) / path.points.back().median_s;
      }
    }
    for (comm::CostPath& path : file_.paths) {
      const bool between_gpus = path.name == comm::all_reduce_name(comm::GradientPath::nccl);
      const bool messages = !path.name.starts_with("copy/") && !between_gpus;
      const bool on_host = path.name.starts_with("copy/host/") || (messages && session_.nodes() == 1);
      KnownLimit limit;
      if (on_host) {
        limit = {"streaming copy", memory};
      } else if (between_gpus) {
        limit = all_reduce_limit(session_.size(), session_.nodes(), options_.peer_link);
      } else if (path.name == "copy/peer") {
        limit = options_.peer_link;
      } else if (path.name == "copy/device_to_device") {
        limit = options_.device_memory;
      } else if (path.name.starts_with("copy/")) {
        limit = options_.host_link;
      }
      path.limit_text = limit.text;
      path.limit_bytes_per_s = limit.bytes_per_s;
    }
  }

  void step(int round, const std::string& what) {
    if (progress_) {
      progress_({curves_done_, curves_, round,
                 seconds_left(curves_done_, curves_, seconds_since(begin_), options_.seconds), what});
    }
  }

  comm::Session& session_;
  const SurveyOptions& options_;
  const std::function<void(const Progress&)>& progress_;
  std::vector<std::int64_t> sizes_;
  comm::CostFile file_;
  double share_ = 0;
  int curves_done_ = 0;
  int curves_ = 0;
  Clock::time_point begin_;
};

}  // namespace

std::optional<Device> peer_gpu(const std::vector<GpuInfo>& gpus, const std::string& mine,
                               const std::vector<std::string>& given) {
  const auto at = std::find(given.begin(), given.end(), mine);
  if (at == given.end() || given.size() < 2) {
    return std::nullopt;
  }
  const std::string& next = at + 1 == given.end() ? given.front() : *(at + 1);
  for (const GpuInfo& gpu : gpus) {
    if (gpu.uuid == next && next != mine) {
      return Device::cuda(gpu.index);
    }
  }
  return std::nullopt;
}

std::vector<std::int64_t> survey_sizes(std::int64_t max_bytes) {
  constexpr int kMost = 24;
  constexpr std::int64_t kLeast = 8;
  require<UsageError>(max_bytes >= kLeast, "the largest size is ", max_bytes, " bytes, expected at least ", kLeast);
  int octaves = 0;
  while ((kLeast << (octaves + 1)) <= max_bytes) {
    ++octaves;
  }
  const int step = octaves / kMost + 1;
  std::vector<std::int64_t> sizes;
  for (int i = 0; i <= octaves; i += step) {
    sizes.push_back(kLeast << i);
  }
  return sizes;
}

double seconds_left(int done, int paths, double elapsed, double planned) {
  const double share = planned / std::max(paths, 1);
  const double pace = std::max(done > 0 ? elapsed / (done + 1) : share, share);  // + 1: the path that is being measured
  return std::max(pace * paths - elapsed, done < paths ? share / 4 : 0);
}

comm::CostPoint cost_point(std::int64_t bytes, const measure::Samples& samples) {
  comm::CostPoint point{.bytes = bytes,
                        .samples = static_cast<std::int64_t>(samples.seconds.size()),
                        .median_s = samples.median(),
                        .min_s = samples.min(),
                        .max_s = samples.max()};
  if (samples.calls == 1) {
    point.p95_s = samples.percentile(95);
    point.p99_s = samples.percentile(99);
  }
  return point;
}

double noise_of(const std::vector<measure::Samples>& sizes) {
  std::vector<double> errors;
  for (const measure::Samples& samples : sizes) {
    std::vector<double> sorted = samples.seconds;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t n = sorted.size();
    if (n >= 4) {
      const double sigma = (sorted[3 * n / 4] - sorted[n / 4]) / 1.349;
      errors.push_back(2 * 1.25 * sigma / std::sqrt(static_cast<double>(n)) / samples.median());
    }
  }
  return errors.empty() ? 0.05 : std::clamp(measure::median_of(errors), 0.05, 0.3);
}

comm::CostFile survey(comm::Session& session, const SurveyOptions& options,
                      const std::function<void(const Progress&)>& progress) {
  return Survey(session, options, progress).run();
}

}  // namespace lockstep::tools
