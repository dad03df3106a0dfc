// bench_copy: measures copies from one memory to another.
//
//   bench_copy --benchmark_filter=host_to_host --benchmark_out=copy.json
//   bench_copy --devices cpu:4     four ranks copy at once, each with its share of the host
//   mpirun -np 4 bench_copy        four ranks copy at once, each on its own GPU if there are GPUs
//
// measure/copy_paths.hpp lists the paths. The name of a benchmark consists of the path, the size, the number of pieces
// into which a copy is split, and the load that runs at the same time.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/processors.hpp>

#include "bench/support/gpus.hpp"
#include "bench/support/runner.hpp"
#include "measure/copy_paths.hpp"
#include "measure/load.hpp"

namespace {

using namespace lockstep;
using bench::Case;
using bench::Timed;
using measure::CopyPath;
using measure::CopySize;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Options {
  int threads = 0;
  bench::SizeOptions sizes{};
  std::int64_t pieces_bytes = 64 * kMiB;
};

class CopyBenchmarks {
 public:
  CopyBenchmarks(comm::Session& session, const Options& options, std::vector<Device> gpus)
      : session_(session),
        options_(options),
        gpus_(std::move(gpus)),
        threads_(options.threads > 0 ? options.threads : comm::cpu_share(session).threads()) {
    if (session.size() == 1) {  // only for one rank: NUMA nodes may differ between ranks, but cases must not
      nodes_ = measure::usable_nodes(numa_nodes(), ProcessorSet::of_this_thread());
    }
    session.agree([&] {
      for (const Device& gpu : gpus_) {
        can_multiply_ = can_multiply_ && measure::can_load_matmul(*make_context(gpu));
      }
    });
  }

  [[nodiscard]] int threads() const { return threads_; }

  /// Returns a text with the kinds of cases that cannot run on this machine or with this number of ranks, each with the
  /// reason.
  [[nodiscard]] std::string left_out() const {
    std::string text;
    const auto add = [&](const char* what) { text += concat(text.empty() ? "" : "; ", what); };
    if (gpus_.empty()) {
      add("host_to_device, device_to_host, device_to_device, peer: no GPU");
    } else if (gpus_.size() == 1) {
      add("peer: one GPU");
    }
    if (!can_multiply_) {
      add("beside:matmul of GPUs: this build has no matrix product for them");
    }
    if (!gpus_.empty() && session_.size() > 1 && !comm::has_nccl()) {
      add("beside:all_reduce of GPUs: this build has no NCCL");
    }
    if (session_.size() > 1) {
      add("numa: several ranks");
    } else if (nodes_.size() < 2) {
      add("numa: the processors of this process are on one node");
    }
    return text;
  }

  std::vector<Case> list() {
    std::vector<Case> all;
    const auto sizes = bench::size_sweep(options_.sizes.min_bytes, options_.sizes.max_bytes, options_.sizes.factor);
    const std::vector<CopyPath> paths = measure::copy_paths(gpus_);
    for (const CopyPath& path : paths) {
      for (const std::int64_t bytes : sizes) {
        add(all, path, {bytes});
      }
    }
    for (const CopyPath& path : paths) {
      const bool in_pieces = (path.enqueues() || path.can_group()) && !path.both_ways;
      for (std::int64_t pieces = 4; pieces <= 4096 && in_pieces; pieces *= 4) {
        for (const bool wait_each : {true, false}) {
          if (pieces <= options_.pieces_bytes) {
            add(all, path, {options_.pieces_bytes, pieces, wait_each});
          }
        }
        if (pieces <= options_.pieces_bytes && path.can_group()) {
          add(all, path, {.bytes = options_.pieces_bytes, .pieces = pieces, .grouped = true});
        }
      }
    }
    for (const CopyPath& path : measure::numa_paths(nodes_)) {
      add(all, path, {options_.pieces_bytes});
    }
    for (const CopyPath& path : paths) {
      if (!path.both_ways && (path.mover == measure::Mover::copy || path.mover == measure::Mover::copy_engine)) {
        const bool on_gpu = gpu_of(path).has_value();
        if (!on_gpu || can_multiply_) {
          add_beside(all, path, Beside::matmul);
        }
        if (session_.size() > 1 && (on_gpu ? comm::has_nccl() : session_.grad().any_thread())) {
          add_beside(all, path, Beside::all_reduce);
        }
      }
    }
    return all;
  }

 private:
  /// Returns the bench, with memory for `path`. Successive sizes of one path share the bench.
  measure::CopyBench& bench_of(const CopyPath& path, std::int64_t bytes) {
    if (path.name != name_ || bytes > bytes_) {
      bench_.reset();
      name_.clear();
      bytes_ = std::max(bytes, options_.sizes.pool_bytes);
      session_.agree([&] { bench_.emplace(path, bytes_, threads_, options_.sizes.pool_bytes); });
      name_ = path.name;
    }
    return *bench_;
  }

  Timed open(const CopyPath& path, const CopySize& size) {
    constexpr double kSampleSeconds = 1e-5;
    measure::CopyBench& bench = bench_of(path, size.bytes);
    session_.agree([&] {
      bench.check({std::min(size.bytes, 16 * kMiB), std::min(size.pieces, size.bytes), size.wait_each, size.grouped});
    });
    return {.work = bench.work(size),
            .sample_seconds = kSampleSeconds,
            .per_call = {{"bytes_per_second", path.payload_bytes(size.bytes)},
                         {"traffic_bytes_per_second", path.traffic_bytes(size.bytes)}},
            .counters = {{"bytes", static_cast<double>(size.bytes)}}};
  }

  void add(std::vector<Case>& all, const CopyPath& path, const CopySize& size) {
    all.push_back({"copy/" + measure::copy_name(path, size), [this, path, size] { return open(path, size); }});
  }

  /// Returns the GPU of a path; for a path between two GPUs, the sender. nullopt for a path inside the host.
  static std::optional<Device> gpu_of(const CopyPath& path) {
    for (const measure::CopyEnd* end : {&path.from, &path.to}) {
      if (end->memory == measure::Memory::device) {
        return end->device;
      }
    }
    return std::nullopt;
  }

  enum class Beside : unsigned char { matmul, all_reduce };

  /// Makes the load that runs at the same time as a copy. The load runs on the path's GPU, on a stream of its own, or
  /// on the host.
  bench::Neighbour neighbour(const CopyPath& path, Beside beside) {
    constexpr std::int64_t kHostBytes = 4 * kMiB;
    constexpr std::int64_t kGpuBytes = 32 * kMiB;
    bench::Neighbour made;
    const std::optional<Device> gpu = gpu_of(path);
    if (gpu && beside == Beside::all_reduce) {
      made.context = std::make_unique<CudaContext>(
          *gpu, CudaContext::Options{.stream = nccl_->communication_stream().cuda_handle()});
      made.load = measure::all_reduce_load(nccl_->grad(), *made.context, kGpuBytes);
      return made;
    }
    if (gpu) {
      made.context = make_context(*gpu);
    } else {
      made.context = std::make_unique<CpuContext>(CpuContext::Options{.threads = 1});
    }
    made.load = beside == Beside::matmul ? measure::matmul_load(*made.context)
                                         : measure::all_reduce_load(session_.grad(), *made.context, kHostBytes);
    return made;
  }

  void add_beside(std::vector<Case>& all, const CopyPath& path, Beside beside) {
    const CopySize size{options_.pieces_bytes};
    all.push_back({concat("copy/", measure::copy_name(path, size),
                          "/beside:", beside == Beside::matmul ? "matmul" : "all_reduce"),
                   [this, path, size, beside] {
                     if (gpu_of(path) && beside == Beside::all_reduce && !nccl_) {
                       nccl_.emplace(session_, comm::RankDevice{.device = gpus_.front()});
                     }
                     const auto busy = std::make_shared<bench::Neighbour>();
                     session_.agree([&] { *busy = neighbour(path, beside); });
                     Timed timed = open(path, size);
                     timed.load = {busy, busy->load.get()};
                     return timed;
                   }});
  }

  comm::Session& session_;
  const Options& options_;
  std::vector<Device> gpus_;
  int threads_;
  std::vector<NumaNode> nodes_;
  std::optional<comm::GpuRanks> nccl_;  ///< NCCL's communicator; made at first use, for several ranks with GPUs
  bool can_multiply_ = true;            ///< true if every GPU can run a load of matrix products
  std::optional<measure::CopyBench> bench_;
  std::string name_;
  std::int64_t bytes_ = 0;
};

int run(const Options& options, comm::Session& session, const DeviceRequest& devices,
        const bench::RunOptions& run_options) {
  const bench::ProcessGpus mine = bench::gpus_of_process(session, devices);
  const std::vector<Device>& gpus = mine.devices;
  CopyBenchmarks benchmarks(session, options, gpus);
  std::vector<Case> all;
  session.agree([&] { all = benchmarks.list(); });
  bench::RunContext context{{"threads", concat(benchmarks.threads())},
                            {"bytes_per_second", "payload: bytes delivered, both directions together"},
                            {"traffic_bytes_per_second", "bytes read and written in one memory, or carried by a link"}};
  if (const std::string left_out = benchmarks.left_out(); !left_out.empty()) {
    context.emplace_back("left_out", left_out);
  }
  return bench::run_cases(session, run_options, context, all);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return bench::run_program(
      argc, argv,
      {.name = "bench_copy",
       .description = "Times copies between memories: sizes, pieces, both directions, at the same time as other work.",
       .add_options =
           [&](CLI::App& app) {
             bench::add_threads_option(app, options.threads);
             bench::add_size_options(app, options.sizes, "a path holds up to four times the largest size");
             app.add_option("--pieces-bytes", options.pieces_bytes,
                            "bytes of the copies that go in pieces, and at the same time as other work")
                 ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
           },
       .ranks = bench::host_ranks,
       .run = std::bind_front(run, std::cref(options))});
}
