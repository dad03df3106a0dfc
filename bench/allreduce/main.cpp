// bench_allreduce: measures collectives between the ranks.
//
//   bench_allreduce --devices cpu:4 --benchmark_out=all_reduce.json      starts its four ranks itself
//   bench_allreduce --devices gpu --benchmark_filter='^all_reduce/.*/stream/'
//   mpirun -np 4 bench_allreduce
//
// Host tensors are sent over MPI. Tensors on GPUs are sent over NCCL, on a stream of high priority.
// There are four kinds of rows:
//   - one collective of one size
//   - one collective of one size, captured in a CUDA graph (only over NCCL)
//   - the all-reduces of a model's gradient buckets, one after the other
//   - one all-reduce at the same time as matrix products
//
// algbw and busbw are defined as in nccl-tests (measure/collectives.hpp). percent_of_copy is 100 * busbw / copy
// bandwidth. The copy bandwidth is the number of bytes that the slowest rank reads and writes per second while all
// ranks copy at once.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "bench/support/runner.hpp"
#include "measure/collectives.hpp"
#include "measure/load.hpp"
#include "measure/timing.hpp"

namespace {

using namespace lockstep;
using bench::Case;
using bench::Timed;
using measure::Collective;
using measure::CollectiveCase;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMaxCheckedBytes = 64 * kMiB;
constexpr double kDoesNotApply = std::numeric_limits<double>::quiet_NaN();

struct Options {
  std::vector<std::string> collectives;
  std::vector<std::string> dtypes{"f32"};
  std::string model = "resnet50";
  bench::SizeOptions sizes{};
};

class CollectiveBenchmarks {
 public:
  /// gpus: the tensors are on these GPUs and are sent over NCCL; nullptr: the tensors are on the host and are sent over
  /// MPI.
  CollectiveBenchmarks(comm::Session& session, const Options& options, comm::GpuRanks* gpus)
      : session_(session),
        options_(options),
        threads_(comm::cpu_share(session).threads()),
        gpus_(gpus),
        host_({.threads = threads_}) {
    if (gpus_ != nullptr) {
      device_ = std::make_unique<CudaContext>(gpus_->communication_stream().device());
      estimator_ = comm::make_nccl_estimator(gpus_->grad());
    }
  }

  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] bool overlaps() const { return grad().can_overlap(); }
  /// True when matrix products can run at the same time as collectives.
  [[nodiscard]] bool can_multiply() { return measure::can_load_matmul(context()); }

  std::vector<Case> list() {
    std::vector<Collective> collectives(std::begin(measure::kCollectives), std::end(measure::kCollectives));
    if (!options_.collectives.empty()) {
      collectives.clear();
      for (const std::string& name : options_.collectives) {
        collectives.push_back(measure::parse_collective(name));
      }
    }
    std::vector<DType> dtypes;
    for (const std::string& name : options_.dtypes) {
      dtypes.push_back(parse_dtype(name));
    }
    std::vector<Stream*> streams;
    if (gpus_ == nullptr) {
      streams.push_back(&inline_);
    }
    if (overlaps()) {
      streams.push_back(&communication_stream());
    }
    std::vector<Case> all;
    const auto sizes = bench::size_sweep(options_.sizes.min_bytes, options_.sizes.max_bytes, options_.sizes.factor);
    for (const CollectiveCase& item : measure::collective_cases(collectives, dtypes)) {
      for (Stream* stream : streams) {
        for (const std::int64_t bytes : sizes) {
          add(all, item, *stream, bytes);
        }
      }
      for (const std::int64_t bytes : sizes) {
        if (gpus_ != nullptr && grad().can_be_captured() && item.collective != Collective::send_recv) {
          CollectiveCase captured = item;
          captured.graph = true;
          add(all, captured, communication_stream(), bytes);
        }
      }
    }
    add_buckets(all, streams);
    if (overlaps() && can_multiply()) {
      for (const std::int64_t bytes : {64 * 1024L, kMiB, 32 * kMiB}) {
        if (bytes <= options_.sizes.max_bytes) {
          add_beside_matmul(all, bytes);
        }
      }
    }
    return all;
  }

 private:
  [[nodiscard]] comm::Communicator& grad() const { return gpus_ != nullptr ? gpus_->grad() : session_.grad(); }
  [[nodiscard]] Stream& communication_stream() const {
    return gpus_ != nullptr ? gpus_->communication_stream() : session_.communication_stream();
  }
  [[nodiscard]] Context& context() { return device_ != nullptr ? static_cast<Context&>(*device_) : host_; }

  Timed open(const CollectiveCase& item, Stream& stream, std::int64_t bytes) {
    if (&stream != stream_ || bytes > bytes_) {
      bench_.reset();
      bytes_ = std::max(bytes, options_.sizes.pool_bytes);
      stream_ = &stream;
      bench_.emplace(grad(), context(), stream, bytes_, options_.sizes.pool_bytes);
    }
    session_.agree([&] { bench_->check(item, std::min(bytes, kMaxCheckedBytes)); });
    const std::int64_t elements = measure::collective_elements(item, bytes, session_.size());
    Timed timed = timed_of(item.collective, elements * static_cast<std::int64_t>(size_of(item.dtype)));
    timed.work = bench_->work(item, bytes);
    if (estimator_) {
      timed.counters.push_back(estimate_of(bench_->estimate(*estimator_, item, bytes)));
    }
    return timed;
  }

  /// Returns the bytes read and written per second by the slowest rank while all ranks copy. Measured once.
  double copy_bandwidth() {
    if (std::isnan(copy_)) {
      constexpr double kCopySeconds = 0.3;
      session_.control().barrier(inline_);
      const std::vector<double> ranks =
          comm::all_gather_value(session_.control(), measure::copy_bandwidth(context(), kCopySeconds));
      copy_ = *std::min_element(ranks.begin(), ranks.end());
    }
    return copy_;
  }

  /// Returns the counters of a collective that delivers `bytes` bytes a call.
  Timed timed_of(Collective collective, std::int64_t bytes) {
    const auto payload = static_cast<double>(bytes);
    const double traffic = payload * measure::bus_factor(collective, session_.size()).value_or(kDoesNotApply);
    return {.per_call = {{"algbw", payload},
                         {"busbw", traffic},
                         {"percent_of_copy", 100 * traffic / copy_bandwidth(), /*rate=*/false}},
            .counters = {{"bytes", payload}}};
  }

  static std::pair<std::string, double> estimate_of(const std::optional<double>& seconds) {
    return {"nccl_estimate_s", seconds.value_or(kDoesNotApply)};
  }

  void add(std::vector<Case>& all, const CollectiveCase& item, Stream& stream, std::int64_t bytes) {
    const std::string name = measure::collective_name(grad(), stream, item, bytes);
    if (!all.empty() && all.back().name == name) {
      return;  // a smaller size had the same number of elements, because there is at least one per rank
    }
    all.push_back({name, [this, item, &stream, bytes] { return open(item, stream, bytes); }});
  }

  /// Adds an all-reduce at the same time as matrix products on the device of the tensors. On a GPU the products have
  /// their own stream, with lower priority than the stream of the collectives.
  void add_beside_matmul(std::vector<Case>& all, std::int64_t bytes) {
    const CollectiveCase item{Collective::all_reduce, DType::f32};
    Stream& stream = communication_stream();
    all.push_back(
        {measure::collective_name(grad(), stream, item, bytes) + "/beside:matmul", [this, item, &stream, bytes] {
           Timed timed = open(item, stream, bytes);
           const auto busy = std::make_shared<bench::Neighbour>();
           session_.agree([&] {
             if (gpus_ != nullptr) {
               busy->context = make_context(context().device());
             } else {
               busy->context = std::make_unique<CpuContext>(CpuContext::Options{.threads = threads_});
             }
             busy->load = measure::matmul_load(*busy->context);
           });
           timed.load = {busy, busy->load.get()};
           return timed;
         }});
  }

  void add_buckets(std::vector<Case>& all, const std::vector<Stream*>& streams) {
    if (options_.model.empty()) {
      return;
    }
    (void)model();  // throws for an unknown name
    const std::pair<const char*, comm::BucketOptions> plans[] = {
        {"default", {}},
        {"cap_25MiB", {.bucket_bytes = 25 * kMiB}},  // the default of PyTorch's DDP
        {"one_bucket", {.bucket_bytes = std::numeric_limits<std::int64_t>::max()}},
        {"one_a_tensor", {.bucket_bytes = 1}}};
    for (const auto& [name, plan] : plans) {
      for (Stream* stream : streams) {
        all.push_back(
            {concat("ddp_buckets/", grad().backend(), "/f32/", options_.model, "/", name,
                    gpus_ == nullptr && stream->is_inline() ? "/blocking" : "/stream"),
             [this, plan = plan, stream] { return open_buckets(comm::plan_buckets(gradients(), plan), *stream); }});
      }
    }
  }

  [[nodiscard]] nn::Model model() const {
    return nn::make_model({.name = options_.model, .classes = 1000, .height = 224, .width = 224});
  }

  /// Returns the gradients of the model, in the order in which they become ready.
  const std::vector<comm::GradientRange>& gradients() {
    if (gradients_.empty()) {
      gradients_ = nn::gradient_ranges(nn::ParameterSet(host_, model(), DType::f32));
    }
    return gradients_;
  }

  /// Makes a case in which one call runs the all-reduces of all `buckets`, in the order in which a training step starts
  /// them.
  Timed open_buckets(const std::vector<comm::Bucket>& buckets, Stream& stream) {
    const std::int64_t elements = buckets.back().end;
    const auto arena = std::make_shared<Tensor>(Tensor::zeros(context(), Shape{elements}, DType::f32));
    context().synchronize();
    Timed timed = timed_of(Collective::all_reduce, elements * 4);
    const auto start = [this, buckets, arena, &stream] {
      for (const comm::Bucket& bucket : buckets) {
        grad().all_reduce(stream, arena->view().slice(0, bucket.begin, bucket.end));
      }
    };
    timed.work = {.start = start, .wait = [&stream] { stream.synchronize(); }, .prepare = {}};
    timed.counters.emplace_back("buckets", static_cast<double>(buckets.size()));
    if (estimator_) {  // the all-reduces run one after the other, so the estimates are added
      double seconds = 0;
      for (const comm::Bucket& bucket : buckets) {
        const TensorView range = arena->view().slice(0, bucket.begin, bucket.end);
        seconds += estimator_->seconds([&](comm::Communicator& planned) { planned.all_reduce(stream, range); })
                       .value_or(kDoesNotApply);
      }
      timed.counters.push_back(estimate_of(seconds));
    }
    return timed;
  }

  comm::Session& session_;
  const Options& options_;
  int threads_;
  comm::GpuRanks* gpus_;
  CpuContext host_;
  std::unique_ptr<CudaContext> device_;
  std::unique_ptr<comm::NcclEstimator> estimator_;  ///< NCCL's estimates of durations, for ranks with GPUs; may be null
  Stream inline_ = Stream::host_inline();
  std::optional<measure::CollectiveBench> bench_;
  Stream* stream_ = nullptr;
  std::int64_t bytes_ = 0;
  double copy_ = kDoesNotApply;
  std::vector<comm::GradientRange> gradients_;
};

/// True for `--devices auto` in a build without NCCL: such a build cannot all-reduce on GPUs.
bool auto_without_nccl(const DeviceRequest& devices) {
  return std::holds_alternative<DeviceRequest::Automatic>(devices.form()) && !comm::has_nccl();
}

/// Returns this rank's GPU, or the CPU. Without NCCL `auto` means the CPU.
comm::RankDevice place(comm::Session& session, const DeviceRequest& devices) {
  return auto_without_nccl(devices) ? comm::RankDevice{} : comm::place_rank(session, devices);
}

int run(const Options& options, comm::Session& session, const DeviceRequest& devices,
        const bench::RunOptions& run_options) {
  const comm::RankDevice placed = place(session, devices);
  std::optional<comm::GpuRanks> gpus;
  if (placed.device != Device::cpu()) {
    gpus.emplace(session, placed);
  }
  CollectiveBenchmarks benchmarks(session, options, gpus ? &*gpus : nullptr);
  std::vector<Case> all;
  session.agree([&] { all = benchmarks.list(); });
  bench::RunContext context{
      {"threads", concat(benchmarks.threads())},
      {"algbw", "bytes of the larger of a rank's two tensors, over the time"},
      {"busbw", "algbw times the share that passes a rank's link, as in nccl-tests; none for one rank"},
      {"percent_of_copy", "busbw over what a copy in memory reads and writes while all ranks copy"},
      {"mean_over_ranks_s", "mean over iterations and ranks, as in the OSU benchmarks; real_time waits for the last"}};
  if (gpus) {
    context.emplace_back("device", concat(list_gpus().at(static_cast<std::size_t>(placed.device.index)).name,
                                          placed.note.empty() ? "" : ", ", placed.note));
    context.emplace_back("nccl_estimate_s", "NCCL's own estimate of the time (ncclGroupSimulateEnd)");
  }
  if (!benchmarks.overlaps()) {
    context.emplace_back("left_out", "stream, beside: MPI calls cannot run beside others here");
  } else if (!benchmarks.can_multiply()) {
    context.emplace_back("left_out", "beside: this build has no matrix product for the GPU");
  }
  return bench::run_cases(session, run_options, context, all);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto add_options = [&](CLI::App& app) {
    app.add_option("--collectives", options.collectives,
                   "collectives to time: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send_recv; "
                   "default: all")
        ->delimiter(',')
        ->default_str("");
    app.add_option("--dtypes", options.dtypes,
                   "number types: f32, f64, bf16, f16, i32, i64, u64, and u8 for collectives that add nothing")
        ->delimiter(',');
    app.add_option("--model", options.model, "model whose gradient buckets are reduced; '': none");
    bench::add_size_options(app, options.sizes, "a rank holds up to twice the largest size");
  };
  return bench::run_program(
      argc, argv,
      {.name = "bench_allreduce",
       .description = "Times collectives between ranks: one rank for each device of --devices, or the ranks of mpirun.",
       .add_options = add_options,
       .ranks = [](const DeviceRequest& devices) -> std::optional<comm::RanksRequest> {
         return auto_without_nccl(devices) ? std::nullopt : std::optional(comm::RanksRequest{.devices = devices});
       },
       .run = std::bind_front(run, std::cref(options))});
}
