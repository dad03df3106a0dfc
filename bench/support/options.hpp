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

/// What the command line says about the run.
struct RunOptions {
  const char* executable = "";         ///< argv[0]: the library keeps this pointer
  std::vector<std::string> library{};  ///< "--benchmark_...=value": every option of the library that we take
  std::string filter{};                ///< of these the ones that we look at ourselves
  std::string out{};                   ///< --benchmark_out
  std::string out_format{};            ///< --benchmark_out_format
  bool list_tests = false;             ///< --benchmark_list_tests
  bool console = true;                 ///< --benchmark_format: text for people
  std::int64_t iterations = 0;         ///< --iterations
  double max_seconds = 0;              ///< --max-seconds
};

/// A program of benchmarks.
struct Program {
  std::string name;  ///< "bench_copy"
  std::string description;
  /// Adds the options that are its own to a command line that has --devices, --benchmark_*, --iterations,
  /// --max-seconds,
  /// --config and --version. What they are read into is read anew each time.
  std::function<void(CLI::App&)> add_options;
  /// Which ranks it starts itself when no launcher did (comm/launch/self_start.hpp); nothing: it goes on alone.
  std::function<std::optional<comm::RanksRequest>(const DeviceRequest&)> ranks;
  std::function<int(comm::Session&, const DeviceRequest&, const RunOptions&)> run;
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
  std::int64_t pool_bytes = measure::kPoolBytes;
};
/// --min-bytes, --max-bytes, --factor, --pool-bytes. held: how much memory the largest takes, for --help.
void add_size_options(CLI::App& app, SizeOptions& options, const std::string& held);

/// Sizes from least to most, each `factor` times the one before, the last one `most`. Pure. UsageError unless
/// 1 <= least <= most and factor >= 2.
[[nodiscard]] std::vector<std::int64_t> size_sweep(std::int64_t least, std::int64_t most, std::int64_t factor);

}  // namespace lockstep::bench
