// bench_comm: what an all-reduce costs between the ranks of this machine.
//
//   mpirun -np 4 bench_comm --json all_reduce.json
//
// algbw = bytes / time; busbw = algbw * 2 (n - 1) / n, the traffic of every rank's link in a ring, which may be
// compared with hardware whatever the number of ranks; %copy holds it against what a copy (bytes read + bytes written)
// gets while all ranks copy at once. The time of a call is that of the slowest rank; calls run back to back over a pool
// of buffers larger than a cache.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/session.hpp>
#include <lockstep/comm/text.hpp>
#include <lockstep/runtime/tensor.hpp>
#include <lockstep/runtime/version.hpp>

#include "bench/support/json_lines.hpp"
#include "bench/support/timing.hpp"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;
constexpr double kCopySeconds = 0.3;

struct Options {
  std::int64_t min_bytes = 4;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  int factor = 4;
  int repeats = 15;
  double repeat_ms = 5;
  bool worker = false;
  std::string json;
};

struct Row {
  std::int64_t bytes = 0;
  double median_s = 0;
  double best_s = 0;
  double worst_s = 0;
  [[nodiscard]] double algbw() const { return static_cast<double>(bytes) / median_s; }
  [[nodiscard]] double busbw(int ranks) const { return algbw() * 2 * (ranks - 1) / ranks; }
};

class Bench {
 public:
  Bench(comm::Session& session, const Options& options)
      : session_(session),
        options_(options),
        worker_(options.worker ? session.communication_stream() : inline_),
        pool_(Tensor::zeros(context_, Shape{pool_elements(options)}, DType::f32)) {}

  /// Bytes per second of the rank that gets least of the memory while all copy.
  double copy_bandwidth() {
    session_.control().barrier(inline_);
    const std::vector<double> ranks =
        comm::all_gather_value(session_.control(), bench::copy_bandwidth(context_, kCopySeconds));
    return *std::min_element(ranks.begin(), ranks.end());
  }

  Row measure(std::int64_t bytes) {
    const std::int64_t elements = bytes / 4;
    check(elements);
    run(elements, 2);
    // As many calls per repeat as fill repeat_ms; rank 0's estimate counts for all.
    const double estimate = comm::all_gather_value(session_.control(), run(elements, 3)).front();
    const int n = static_cast<int>(std::clamp(options_.repeat_ms * 1e-3 / estimate, 1.0, 10000.0));
    std::vector<double> times;
    for (int i = 0; i < options_.repeats; ++i) {
      const std::vector<double> ranks = comm::all_gather_value(session_.control(), run(elements, n));
      times.push_back(*std::max_element(ranks.begin(), ranks.end()));
    }
    std::sort(times.begin(), times.end());
    return {bytes, times[times.size() / 2], times.front(), times.back()};
  }

 private:
  static std::int64_t pool_elements(const Options& options) {
    return std::max<std::int64_t>(2 * options.max_bytes, std::int64_t{64} << 20) / 4;
  }

  TensorView buffer(std::int64_t elements) {
    if (next_ + elements > pool_.shape()[0]) {
      next_ = 0;
    }
    const TensorView view = pool_.view().slice(0, next_, next_ + elements);
    next_ += (elements + 63) / 64 * 64;
    return view;
  }

  /// Seconds per call on this rank. Sums of zeros stay zero.
  double run(std::int64_t elements, int calls) {
    session_.control().barrier(inline_);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) {
      session_.grad().all_reduce(worker_, buffer(elements));
    }
    worker_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  }

  void check(std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements), static_cast<float>(session_.rank() + 1));
    session_.grad().all_reduce(worker_, {std::span(values), Shape{elements}});
    worker_.synchronize();
    const auto expected = static_cast<float>(session_.size() * (session_.size() + 1) / 2);
    const bool right = std::all_of(values.begin(), values.end(), [=](float v) { return v == expected; });
    session_.agree([&] { require<StateError>(right, "all_reduce of ", elements, " x f32 is wrong"); });
  }

  comm::Session& session_;
  const Options& options_;
  CpuContext context_;
  Stream inline_ = Stream::host_inline();
  Stream& worker_;
  Tensor pool_;
  std::int64_t next_ = 0;
};

void write(bench::JsonLines& file, const comm::Session& session, const Options& options, const Row& row, double copy) {
  file.write({{"benchmark", "all_reduce"},
              {"build", build_description()},
              {"mpi", session.description()},
              {"ranks", session.size()},
              {"nodes", session.nodes()},
              {"dtype", "f32"},
              {"stream", options.worker ? "worker" : "inline"},
              {"repeats", options.repeats},
              {"bytes", row.bytes},
              {"median_s", row.median_s},
              {"best_s", row.best_s},
              {"worst_s", row.worst_s},
              {"algbw_bytes_per_s", row.algbw()},
              {"busbw_bytes_per_s", row.busbw(session.size())},
              {"copy_bytes_per_s", copy},
              {"percent_of_copy", 100 * row.busbw(session.size()) / copy}});
}

int run(comm::Session& session, int argc, char** argv) {
  Options options;
  CLI::App app("Time and bandwidth of all-reduce over the ranks that mpirun started.", "bench_comm");
  app.set_version_flag("--version", build_description());
  app.add_option("--min-bytes", options.min_bytes, "smallest message")
      ->capture_default_str()
      ->check(CLI::Range(4, 1 << 30));
  app.add_option("--max-bytes", options.max_bytes, "largest message")
      ->capture_default_str()
      ->check(CLI::Range(4, 1 << 30));
  app.add_option("--factor", options.factor, "from one size to the next")
      ->capture_default_str()
      ->check(CLI::Range(2, 1024));
  app.add_option("--repeats", options.repeats, "measurements per size")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app.add_option("--repeat-ms", options.repeat_ms, "least time of a measurement")->capture_default_str();
  app.add_flag("--worker", options.worker, "run on the communication worker, as in training, not inline");
  app.add_option("--json", options.json, "also writes one JSON object per line and size to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return session.rank() == 0 ? app.exit(e) : 0;
  } catch (const CLI::ParseError& e) {
    session.agree([&] { throw UsageError(e.what()); });
  }
  std::optional<bench::JsonLines> json;
  session.agree([&] {
    if (session.rank() == 0 && !options.json.empty()) {
      json.emplace(options.json);
    }
  });

  Bench bench(session, options);
  const double copy = bench.copy_bandwidth();
  if (session.rank() == 0) {
    std::printf("%s\n%d ranks on %d nodes, %s, %s; copy %.1f GB/s on each rank\n", build_description().c_str(),
                session.size(), session.nodes(), session.description().c_str(),
                options.worker ? "on a worker" : "inline", copy * 1e-9);
    std::printf("%12s %12s %12s %12s %12s %12s %7s\n", "bytes", "median us", "best us", "worst us", "algbw GB/s",
                "busbw GB/s", "%copy");
  }
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    const Row row = bench.measure(bytes / 4 * 4);
    if (session.rank() == 0) {
      const double busbw = row.busbw(session.size());
      std::printf("%12lld %12.2f %12.2f %12.2f %12.3f %12.3f %7.1f\n", static_cast<long long>(row.bytes),
                  row.median_s * 1e6, row.best_s * 1e6, row.worst_s * 1e6, row.algbw() * 1e-9, busbw * 1e-9,
                  100 * busbw / copy);
      std::fflush(stdout);
    }
    if (json) {
      write(*json, session, options, row, copy);
    }
  }
  session.agree([&] {
    if (json) {
      json->close();
    }
  });
  return exit_code::kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run);
}
