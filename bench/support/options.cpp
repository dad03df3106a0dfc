#include "bench/support/options.hpp"

#include <array>
#include <cstdio>
#include <variant>

#include <CLI/CLI.hpp>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/config_file.hpp"

// The suffix that this version of Google Benchmark expects after a number of seconds: "s" or nothing.
// bench/CMakeLists.txt defines the suffix.
#ifndef LOCKSTEP_BENCHMARK_SECONDS
#define LOCKSTEP_BENCHMARK_SECONDS ""
#endif

namespace lockstep::bench {
namespace {

/// Returns a validator for a number of seconds. It accepts "0.5" and "0.5s", and rewrites the text to the form of
/// Google Benchmark: the number, then `unit`.
CLI::Validator seconds(const std::string& unit = "") {
  const auto check = [unit](std::string& text) -> std::string {
    const std::string number = text.ends_with('s') ? text.substr(0, text.size() - 1) : text;
    double value = 0;
    if (!CLI::detail::lexical_cast(number, value) || !(value >= 0 && value <= 1e6)) {
      return concat("'", text,
                    "', expected seconds from 0 to 1000000, as 0.5 or 0.5s (--iterations takes a number of calls)");
    }
    text = number + unit;
    return {};
  };
  return {check, "SECONDS"};
}

/// The options of Google Benchmark. Each option is passed to Google Benchmark, even if the user did not give the
/// option. Otherwise Google Benchmark would read the option from an environment variable such as BENCHMARK_FILTER,
/// which may differ between ranks. --benchmark_enable_random_interleaving is not offered, because each rank would run
/// the cases in another order.
class LibraryOptions {
 public:
  explicit LibraryOptions(CLI::App& app) {
    for (Text& each : texts_) {
      app.add_option(concat("--benchmark_", each.name), each.value, each.help)->check(each.check)->group(kGroup);
    }
    for (Flag& each : flags_) {
      app.add_flag(concat("--benchmark_", each.name), each.value, each.help)->group(kGroup);
    }
  }
  void read(RunOptions& options) const {
    options.library.clear();
    for (const Text& each : texts_) {
      if (!each.value.empty() || each.name == std::string("filter") || each.name == std::string("out")) {
        options.library.push_back(concat("--benchmark_", each.name, "=", each.value));
      }
    }
    for (const Flag& each : flags_) {
      options.library.push_back(concat("--benchmark_", each.name, "=", each.value ? "true" : "false"));
    }
    options.library.emplace_back("--benchmark_enable_random_interleaving=false");
    options.filter = texts_[0].value;
    options.out = texts_[1].value;
    options.out_format = texts_[2].value;
    options.console = texts_[3].value == "console";
    options.list_tests = flags_[0].value;
  }

 private:
  static constexpr const char* kGroup = "Google Benchmark's options";
  struct Text {
    const char* name;
    std::string value;
    const char* help;
    CLI::Validator check{};
  };
  struct Flag {
    const char* name;
    const char* help;
    bool value = false;
  };
  std::array<Text, 10> texts_{{
      {"filter", "",
       "regular expression that selects benchmarks by a match in their names; -EXPRESSION: all other benchmarks"},
      {"out", "", "file to which the results are also written"},
      {"out_format", "json", "format of the file of --benchmark_out", CLI::IsMember({"json", "csv", "console"})},
      {"format", "console", "format of the printed results", CLI::IsMember({"console", "json", "csv"})},
      {"min_time", "0.2" LOCKSTEP_BENCHMARK_SECONDS, "time of each benchmark in seconds, at least",
       seconds(LOCKSTEP_BENCHMARK_SECONDS)},
      {"min_warmup_time", "0", "warm-up time of each benchmark in seconds, before the benchmark is timed", seconds()},
      {"repetitions", "1", "runs of each benchmark; more than one adds mean, median, stddev and cv",
       CLI::Range(1, 1000)},
      {"time_unit", "ns", "unit of times that are printed and written", CLI::IsMember({"ns", "us", "ms", "s"})},
      {"color", "false", "colours in the printed results; auto does not notice that mpirun prints to a file",
       CLI::IsMember({"true", "false", "auto"})},
      {"context", "", "KEY=VALUE,..., printed and written with the results"},
  }};
  std::array<Flag, 4> flags_{{
      {"list_tests", "print the names of the benchmarks and stop"},
      {"report_aggregates_only", "report only mean, median, stddev and cv of several repetitions"},
      {"display_aggregates_only",
       "print only mean, median, stddev and cv of several repetitions, but write all results"},
      {"counters_tabular", "print counters as columns"},
  }};
};

/// The options of the command line, or a text to print instead of running (--help, --version).
struct Parsed {
  DeviceRequest devices{};
  RunOptions options{};
  std::string text{};
};

/// Parses the command line; `config` is the file of --config. Throws UsageError for an invalid command line, and
/// DataError for a file that is not TOML.
Parsed parse(const Program& program, int argc, char** argv, const lockstep::cli::ConfigFile& config) {
  Parsed parsed;
  std::string devices = "auto";
  CLI::App app(program.description, program.name);
  app.option_defaults()->always_capture_default();
  app.footer(
      "Times: real_time is the time of the slowest rank, as a mean over the iterations; medians are over\n"
      "--benchmark_repetitions. Counters in seconds (p50_s, p95_s, p99_s, min_s, max_s) are over the\n"
      "iterations of one run. bench/README.md says more.");
  app.add_option("--devices", devices, "devices of each node (docs/devices.md); cpu:N: N ranks on the host");
  if (program.add_options) {
    program.add_options(app);
  }
  app.add_option("--iterations", parsed.options.iterations,
                 "number of calls of each benchmark; 0: as many as --benchmark_min_time takes")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1000000000}));
  app.add_option("--max-seconds", parsed.options.max_seconds,
                 "seconds after which no further benchmark starts; 0: no limit")
      ->check(CLI::Range(0.0, 1e6));
  const LibraryOptions library(app);
  parsed.text = lockstep::cli::parse_command_line(app, argc, argv, config);
  if (parsed.text.empty()) {
    parsed.devices = DeviceRequest::parse(devices);
    library.read(parsed.options);
    parsed.options.executable = argv[0];
  }
  return parsed;
}

int run(comm::Session& session, const Program& program, int argc, char** argv) {
  Parsed parsed;
  const lockstep::cli::ConfigFile config = lockstep::cli::read_config_file(session, argc, argv);
  session.agree([&] { parsed = parse(program, argc, argv, config); });
  comm::require_same_on_all_ranks(session.control(), comm::arguments_text(argc, argv));
  if (parsed.text.empty()) {
    require<UsageError>(program.ranks || session.size() == 1, program.name, " runs on ", session.size(),
                        " ranks, expected 1");
    return program.run(session, parsed.devices, parsed.options);
  }
  if (session.rank() == 0) {
    std::printf("%s", parsed.text.c_str());
  }
  return exit_code::kFinished;
}

}  // namespace

int run_program(int argc, char** argv, const Program& program) noexcept {
  return comm::run_program(
      argc, argv, [&](comm::Session& session, int count, char** words) { return run(session, program, count, words); },
      [&]() -> std::optional<comm::RanksRequest> {
        const Parsed parsed = parse(program, argc, argv, lockstep::cli::read_config_file(argc, argv));
        return parsed.text.empty() && program.ranks ? program.ranks(parsed.devices) : std::nullopt;
      });
}

std::optional<comm::RanksRequest> host_ranks(const DeviceRequest& devices) {
  if (!std::holds_alternative<DeviceRequest::Host>(devices.form())) {
    return std::nullopt;
  }
  return comm::RanksRequest{.devices = devices};
}

void add_threads_option(CLI::App& app, int& threads) {
  app.add_option("--threads", threads,
                 "compute threads of each rank on the host; 0: the rank's share of the processors")
      ->check(CLI::Range(0, 65536));
}

void add_size_options(CLI::App& app, SizeOptions& options, const std::string& held) {
  const CLI::Range bytes(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--min-bytes", options.min_bytes, "smallest size in bytes")->check(bytes);
  app.add_option("--max-bytes", options.max_bytes, "largest size in bytes; " + held)->check(bytes);
  app.add_option("--factor", options.factor, "factor from one size to the next")->check(CLI::Range(2, 1 << 20));
  app.add_option("--pool-bytes", options.pool_bytes,
                 "bytes of memory that calls of small sizes go through, one place after the other")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
}

std::vector<std::int64_t> size_sweep(std::int64_t least, std::int64_t most, std::int64_t factor) {
  require<UsageError>(least >= 1 && least <= most, "sizes are ", least, " to ", most,
                      " bytes, expected at least 1, and not more than the largest");
  require<UsageError>(factor >= 2, "from one size to the next the factor is ", factor, ", expected at least 2");
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = least; size < most; size *= factor) {
    sizes.push_back(size);
    if (size > most / factor) {
      break;
    }
  }
  sizes.push_back(most);
  return sizes;
}

}  // namespace lockstep::bench
