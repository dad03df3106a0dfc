#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/session.hpp>

#include "bench/support/measure.hpp"

namespace CLI {
class App;
}

namespace lockstep::bench {

// Programs that keep to the conventions of Google Benchmark: names, options and the JSON that its tools read. The
// library itself is not used: it chooses the number of iterations in each process, and ranks must agree on it; it keeps
// sums of times, and percentiles need the values.

/// A number beside the times. NaN stands for "does not apply" and is left out of the JSON.
struct Counter {
  std::string name;
  double value = 0;
  bool bytes_per_second = false;  ///< for people: printed as GB/s
};

struct Line {
  Measurement measurement;
  std::vector<Counter> counters{};  ///< besides those that every line has
  /// What payload and traffic per second are called; collectives have algbw and busbw.
  std::string payload_name = "bytes_per_second";
  std::string traffic_name = "traffic_bytes_per_second";
};

struct Benchmark {
  std::string name;                                        ///< "copy/host_to_host/pageable/one_way/memcpy/1048576"
  std::function<Line(const MeasureOptions& options)> run;  ///< on all ranks together
};

struct RunnerOptions {
  std::string filter;               ///< --benchmark_filter
  std::string out;                  ///< --benchmark_out
  std::string out_format = "json";  ///< --benchmark_out_format
  std::string min_time = "0.2";     ///< --benchmark_min_time
  int repetitions = 1;              ///< --benchmark_repetitions
  bool list_tests = false;          ///< --benchmark_list_tests
};

/// What stands above the lines: names and values, also in the JSON's context.
using RunContext = std::vector<std::pair<std::string, std::string>>;

/// Adds the --benchmark_* options to a command line.
void add_runner_options(CLI::App& app, RunnerOptions& options);

/// Parses the command line on all ranks. True when the program goes on; false after --help and --version, which rank 0
/// prints. UsageError on all ranks, printed once: for what does not parse, and for ranks with different arguments.
[[nodiscard]] bool parse_arguments(comm::Session& session, CLI::App& app, int argc, char** argv);

/// Which names contain a match of the regular expression (ECMAScript), or no match where it begins with "-"; "" and
/// "all" keep all. Pure. UsageError for what is no regular expression, and when nothing is left.
[[nodiscard]] std::vector<std::size_t> filtered(const std::vector<std::string>& names, const std::string& filter);

/// "0.5" and "0.5s": for so many seconds; "20x": exactly so many iterations. Pure. UsageError otherwise.
[[nodiscard]] MeasureOptions parse_min_time(const std::string& text);

/// Sizes from least to most, each `factor` times the one before, the last one `most`. Pure. UsageError unless
/// 1 <= least <= most and factor >= 2.
[[nodiscard]] std::vector<std::int64_t> size_sweep(std::int64_t least, std::int64_t most, std::int64_t factor);

/// Runs what the options choose; rank 0 prints a table and writes the file. UsageError, DataError for a file that
/// cannot be written: on all ranks, by way of Session::agree(). Returns the exit code.
int run_benchmarks(comm::Session& session, const RunnerOptions& options, const RunContext& context,
                   const std::vector<Benchmark>& benchmarks);

}  // namespace lockstep::bench
