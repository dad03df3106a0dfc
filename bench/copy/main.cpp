// bench_copy: what it costs to bring bytes from one memory to another.
//
//   bench_copy --benchmark_filter=host_to_host --benchmark_out=copy.json
//   mpirun -np 4 bench_copy        all ranks copy at once, each on its own GPU or part of the host
//
// Paths are those of bench/support/copy_paths.hpp; the names of the benchmarks say path, size, pieces and what runs
// beside.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/cpu_share.hpp>
#include <lockstep/comm/session.hpp>
#include <lockstep/runtime/version.hpp>

#include "bench/support/copy_paths.hpp"
#include "bench/support/gpus.hpp"
#include "bench/support/load.hpp"
#include "bench/support/runner.hpp"

namespace {

using namespace lockstep;
using bench::Benchmark;
using bench::CopyPath;
using bench::CopySize;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Options {
  std::string devices = "auto";
  int threads = 0;
  std::int64_t min_bytes = 4;
  std::int64_t max_bytes = 1024 * kMiB;
  std::int64_t factor = 4;
  std::int64_t pieces_bytes = 64 * kMiB;
  std::int64_t pool_bytes = bench::kPoolBytes;
};

class CopyBenchmarks {
 public:
  CopyBenchmarks(comm::Session& session, const Options& options, std::vector<Device> gpus)
      : session_(session),
        options_(options),
        gpus_(std::move(gpus)),
        threads_(options.threads > 0 ? options.threads : comm::cpu_share(session).threads()) {}

  [[nodiscard]] int threads() const { return threads_; }

  std::vector<Benchmark> list() {
    std::vector<Benchmark> all;
    const auto sizes = bench::size_sweep(options_.min_bytes, options_.max_bytes, options_.factor);
    const std::vector<CopyPath> paths = bench::copy_paths(gpus_);
    for (const CopyPath& path : paths) {
      for (const std::int64_t bytes : sizes) {
        add(all, path, {bytes});
      }
    }
    for (const CopyPath& path : paths) {
      for (std::int64_t pieces = 4; pieces <= 4096 && path.enqueues() && !path.both_ways; pieces *= 4) {
        for (const bool wait_each : {true, false}) {
          if (pieces <= options_.pieces_bytes) {
            add(all, path, {options_.pieces_bytes, pieces, wait_each});
          }
        }
      }
    }
    for (const CopyPath& path : paths) {
      if (!path.both_ways && (path.mover == bench::Mover::copy || path.mover == bench::Mover::copy_engine)) {
        add_beside(all, path, "matmul");
        if (session_.size() > 1 && session_.grad().any_thread()) {
          add_beside(all, path, "all_reduce");
        }
      }
    }
    return all;
  }

 private:
  /// The memory of the path at hand: kept while sizes of one path follow each other.
  bench::CopyBench& bench_of(const CopyPath& path, std::int64_t bytes) {
    if (path.name != name_ || bytes > bytes_) {
      bench_.reset();
      name_.clear();
      bytes_ = std::max(bytes, options_.pool_bytes);
      session_.agree([&] { bench_.emplace(path, bytes_, threads_, options_.pool_bytes); });
      name_ = path.name;
    }
    return *bench_;
  }

  bench::Measurement measure(const CopyPath& path, const CopySize& size, bench::MeasureOptions options) {
    constexpr double kSampleSeconds = 1e-5;  // shorter copies are timed together
    bench::CopyBench& bench = bench_of(path, size.bytes);
    session_.agree([&] { bench.check({std::min(size.bytes, 16 * kMiB), std::min(size.pieces, size.bytes)}); });
    options.sample_seconds = kSampleSeconds;
    return bench.measure(session_.control(), size, options);
  }

  void add(std::vector<Benchmark>& all, const CopyPath& path, const CopySize& size) {
    all.push_back({"copy/" + bench::copy_name(path, size), [this, path, size](const bench::MeasureOptions& options) {
                     return bench::Line{measure(path, size, options)};
                   }});
  }

  void add_beside(std::vector<Benchmark>& all, const CopyPath& path, const std::string& load) {
    const CopySize size{options_.pieces_bytes};
    all.push_back({concat("copy/", bench::copy_name(path, size), "/beside:", load),
                   [this, path, size, load](const bench::MeasureOptions& options) {
                     std::unique_ptr<Context> context;
                     std::unique_ptr<bench::Load> running;
                     session_.agree([&] {
                       if (load == "matmul") {
                         context = std::make_unique<CpuContext>(CpuContext::Options{.threads = 1});
                         running = bench::matmul_load(*context);
                       } else {
                         running = bench::all_reduce_load(session_.grad(), 4 * kMiB);
                       }
                     });
                     return bench::measure_beside(session_.control(), *running,
                                                  [&] { return measure(path, size, options); });
                   }});
  }

  comm::Session& session_;
  const Options& options_;
  std::vector<Device> gpus_;
  int threads_;
  std::optional<bench::CopyBench> bench_;
  std::string name_;
  std::int64_t bytes_ = 0;
};

int run(comm::Session& session, int argc, char** argv) {
  Options options;
  bench::RunnerOptions runner;
  CLI::App app("What copies between memories cost: sizes, pieces, both ways, beside other work.", "bench_copy");
  app.set_version_flag("--version", build_description());
  app.add_option("--devices", options.devices, "GPUs of each node, as for every program (docs/devices.md)")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "of the host's copies; 0: this rank's share of the processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  const CLI::Range bytes(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--min-bytes", options.min_bytes, "smallest copy")->capture_default_str()->check(bytes);
  app.add_option("--max-bytes", options.max_bytes, "largest copy; a path holds up to four times that")
      ->capture_default_str()
      ->check(bytes);
  app.add_option("--factor", options.factor, "from one size to the next")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--pieces-bytes", options.pieces_bytes, "size of what goes in pieces, and beside other work")
      ->capture_default_str()
      ->check(bytes);
  app.add_option("--pool-bytes", options.pool_bytes, "memory that small copies go through, one after the other")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  bench::add_runner_options(app, runner);
  if (!bench::parse_arguments(session, app, argc, argv)) {
    return exit_code::kFinished;
  }
  const bench::ProcessGpus mine = bench::gpus_of_process(session, options.devices);
  const std::vector<Device>& gpus = mine.devices;
  CopyBenchmarks benchmarks(session, options, gpus);
  std::vector<Benchmark> all;
  session.agree([&] { all = benchmarks.list(); });
  bench::RunContext context{{"threads", concat(benchmarks.threads())},
                            {"bytes_per_second", "payload: bytes delivered, both directions together"},
                            {"traffic_bytes_per_second", "bytes read and written in one memory, or carried by a link"}};
  if (gpus.empty()) {
    context.emplace_back("left_out", "host_to_device, device_to_host, device_to_device, peer: no GPU");
  } else if (gpus.size() == 1) {
    context.emplace_back("left_out", "peer: one GPU");
  }
  return bench::run_benchmarks(session, runner, context, all);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run);
}
