#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

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

/// What follows from several lines: a sentence for people, and its numbers.
struct Conclusion {
  std::string name;  ///< "crossover/cuda:0"
  std::string text;
  std::vector<Counter> counters{};
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

/// A program of benchmarks.
struct Program {
  std::string name;  ///< "bench_copy"
  std::string description;
  /// Adds the options that are its own to a command line that has --devices, --benchmark_*, --config and --version.
  /// What they are read into is read anew each time.
  std::function<void(CLI::App&)> add_options;
  /// Which ranks it starts itself when no launcher did (comm/launch/self_start.hpp); nothing: it goes on alone.
  std::function<std::optional<comm::RanksRequest>(const DeviceRequest&)> ranks;
  std::function<int(comm::Session&, const DeviceRequest&, const RunnerOptions&)> run;
};

/// The main() of such a program. --help and --version are printed by rank 0. UsageError on all ranks, printed once, for
/// what does not parse and for ranks with different arguments.
int run_program(int argc, char** argv, const Program& program) noexcept;

/// For Program::ranks: as many ranks as cpu:N says, and otherwise none, since one process has all GPUs.
[[nodiscard]] std::optional<comm::RanksRequest> host_ranks(const DeviceRequest& devices);

/// --threads, of a rank; 0: its share of the processors.
void add_threads_option(CLI::App& app, int& threads);

/// What bytes are moved in: sizes from min to max, each `factor` times the one before.
struct SizeOptions {
  std::int64_t min_bytes = 4;
  std::int64_t max_bytes = std::int64_t{1} << 30;
  std::int64_t factor = 4;
  std::int64_t pool_bytes = kPoolBytes;
};
/// --min-bytes, --max-bytes, --factor, --pool-bytes. held: how much memory the largest takes, for --help.
void add_size_options(CLI::App& app, SizeOptions& options, const std::string& held);

/// Which names contain a match of the regular expression (ECMAScript), or no match where it begins with "-"; "" and
/// "all" keep all. Pure. UsageError for what is no regular expression, and when nothing is left.
[[nodiscard]] std::vector<std::size_t> filtered(const std::vector<std::string>& names, const std::string& filter);

/// "0.5" and "0.5s": for so many seconds; "20x": exactly so many iterations. Pure. UsageError otherwise.
[[nodiscard]] MeasureOptions parse_min_time(const std::string& text);

/// Sizes from least to most, each `factor` times the one before, the last one `most`. Pure. UsageError unless
/// 1 <= least <= most and factor >= 2.
[[nodiscard]] std::vector<std::int64_t> size_sweep(std::int64_t least, std::int64_t most, std::int64_t factor);

/// Runs what the options choose; rank 0 prints a table and writes the file. UsageError, DataError for a file that
/// cannot be written: on all ranks, by way of Session::agree(). conclude is called on rank 0 after the last line; its
/// results are printed, and stand as "conclusions" in the file. Returns the exit code.
int run_benchmarks(comm::Session& session, const RunnerOptions& options, const RunContext& context,
                   const std::vector<Benchmark>& benchmarks,
                   const std::function<std::vector<Conclusion>()>& conclude = {});

}  // namespace lockstep::bench
