#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "measure/measure.hpp"

namespace CLI {
class App;
}

namespace lockstep::bench {

/// The options that all benchmark programs have.
struct RunOptions {
  const char* executable = "";         ///< argv[0]; Google Benchmark keeps this pointer
  std::vector<std::string> library{};  ///< "--benchmark_...=value": all options for Google Benchmark
  std::string filter{};                ///< value of --benchmark_filter, which is also in `library`
  std::string out{};                   ///< --benchmark_out
  std::string out_format{};            ///< value of --benchmark_out_format
  bool list_tests = false;             ///< true with --benchmark_list_tests
  bool console = true;                 ///< true if --benchmark_format is console, a text for people
  std::int64_t iterations = 0;         ///< value of --iterations
  double max_seconds = 0;              ///< value of --max-seconds
};

/// A program of benchmarks.
struct Program {
  std::string name;  ///< "bench_copy"
  std::string description;
  /// Adds the program's own options to a command line that has --devices, --benchmark_*, --iterations, --max-seconds,
  /// --config and --version. --help prints the defaults of the options.
  std::function<void(CLI::App&)> add_options{};
  /// Returns the ranks that the program starts when no launcher did (comm/launch/self_start.hpp); nullopt: the program
  /// runs alone. If the function is empty, the program runs on one rank only, and more ranks are a UsageError.
  std::function<std::optional<comm::RanksRequest>(const DeviceRequest&)> ranks{};
  std::function<int(comm::Session&, const DeviceRequest&, const RunOptions&)> run;
};

/// The main() of a benchmark program; returns the exit code. Rank 0 prints --help and --version. Arguments that are
/// invalid or differ between ranks are a UsageError on all ranks, which is printed once.
int run_program(int argc, char** argv, const Program& program) noexcept;

/// Returns a request for N ranks if `devices` is cpu:N. Returns nullopt for all other devices, because one process
/// measures all GPUs. A program that uses this function assigns it to Program::ranks.
[[nodiscard]] std::optional<comm::RanksRequest> host_ranks(const DeviceRequest& devices);

/// Adds --threads, the number of threads of a rank; 0: the rank's share of the processors.
void add_threads_option(CLI::App& app, int& threads);

/// Sizes in bytes from min_bytes to max_bytes. Each size is `factor` times the size before.
struct SizeOptions {
  std::int64_t min_bytes = 4;
  std::int64_t max_bytes = std::int64_t{1} << 30;
  std::int64_t factor = 4;
  std::int64_t pool_bytes = measure::kPoolBytes;
};
/// Adds --min-bytes, --max-bytes, --factor, --pool-bytes. `held` is the sentence of --help that tells how much memory
/// the largest size needs.
void add_size_options(CLI::App& app, SizeOptions& options, const std::string& held);

/// Returns sizes from `least` to `most`, each `factor` times the size before; the last size is `most`. Pure. Throws
/// UsageError unless 1 <= least <= most and factor >= 2.
[[nodiscard]] std::vector<std::int64_t> size_sweep(std::int64_t least, std::int64_t most, std::int64_t factor);

}  // namespace lockstep::bench
