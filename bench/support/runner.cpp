// The only file of the benchmarks' library that includes CLI11: it is slow to compile.
#include "bench/support/runner.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>
#include <variant>

#include <CLI/CLI.hpp>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

#include "bench/support/report.hpp"
#include "cli/command_line.hpp"
#include "cli/config_file.hpp"

namespace lockstep::bench {
namespace {

/// What Google Benchmark writes there, and what is ours.
RunContext full_context(const comm::Session& session, const RunContext& context) {
  char date[64];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S%z", &local);
  double load[3] = {};
  const int loads = getloadavg(load, 3);
  RunContext all{{"date", date},
                 {"host_name", session.host()},
                 {"num_cpus", concat(std::thread::hardware_concurrency())},
                 {"load_avg", loads == 3 ? concat("[", load[0], ", ", load[1], ", ", load[2], "]") : "[]"},
                 {"library", build_description()},
                 {"mpi", session.description()},
                 {"ranks", concat(session.size())},
                 {"nodes", concat(session.nodes())},
                 {"real_time", "median over the iterations of the time of the slowest rank"},
                 {"cpu_time", "all threads of rank 0"}};
  all.insert(all.end(), context.begin(), context.end());
  return all;
}

std::vector<std::string> names_of_rank_0(comm::Session& session, const std::vector<Benchmark>& benchmarks) {
  std::string joined;
  for (const Benchmark& benchmark : benchmarks) {
    joined += benchmark.name + "\n";
  }
  std::istringstream lines(comm::broadcast_text(session.control(), joined));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    names.push_back(line);
  }
  session.agree([&] {
    require<UsageError>(names.size() == benchmarks.size(), "rank 0 has ", names.size(), " benchmarks, this one ",
                        benchmarks.size(), ": the ranks' machines or options differ");
  });
  return names;
}

void add_runner_options(CLI::App& app, RunnerOptions& options) {
  app.add_option("--benchmark_filter", options.filter,
                 "regular expression: benchmarks whose name contains a match; -EXPRESSION: those without");
  app.add_option("--benchmark_min_time", options.min_time, "seconds for each, as 0.5 or 0.5s; or iterations, as 20x")
      ->capture_default_str();
  app.add_option("--benchmark_repetitions", options.repetitions, "runs of each, with mean, median, stddev and cv")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--benchmark_out", options.out, "also writes the results to this file");
  app.add_option("--benchmark_out_format", options.out_format, "json is what there is")
      ->capture_default_str()
      ->check(CLI::IsMember({"json"}));
  app.add_flag("--benchmark_list_tests", options.list_tests, "prints the names and stops");
}

/// The command line, or a text to print instead of a run (--help, --version).
struct Parsed {
  DeviceRequest devices{};
  RunnerOptions runner{};
  std::string text{};
};

/// UsageError, DataError for a file that is no TOML. `config`: the file of --config.
Parsed parse(const Program& program, int argc, char** argv, const lockstep::cli::ConfigFile& config) {
  Parsed parsed;
  std::string devices = "auto";
  CLI::App app(program.description, program.name);
  app.add_option("--devices", devices,
                 "of each node, as for every program (docs/devices.md); cpu:N: N ranks on the host")
      ->capture_default_str();
  program.add_options(app);
  add_runner_options(app, parsed.runner);
  parsed.text = lockstep::cli::parse_command_line(app, argc, argv, config);
  if (parsed.text.empty()) {
    parsed.devices = DeviceRequest::parse(devices);
  }
  return parsed;
}

int run(comm::Session& session, const Program& program, int argc, char** argv) {
  Parsed parsed;
  const lockstep::cli::ConfigFile config = lockstep::cli::read_config_file(session, argc, argv);
  session.agree([&] { parsed = parse(program, argc, argv, config); });
  comm::require_same_on_all_ranks(session.control(), comm::arguments_text(argc, argv));
  if (parsed.text.empty()) {
    return program.run(session, parsed.devices, parsed.runner);
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
        return parsed.text.empty() ? program.ranks(parsed.devices) : std::nullopt;
      });
}

std::optional<comm::RanksRequest> host_ranks(const DeviceRequest& devices) {
  if (!std::holds_alternative<DeviceRequest::Host>(devices.form())) {
    return std::nullopt;
  }
  return comm::RanksRequest{.devices = devices};
}

void add_threads_option(CLI::App& app, int& threads) {
  app.add_option("--threads", threads, "of a rank on the host; 0: its share of the processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
}

void add_size_options(CLI::App& app, SizeOptions& options, const std::string& held) {
  const CLI::Range bytes(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--min-bytes", options.min_bytes, "smallest size")->capture_default_str()->check(bytes);
  app.add_option("--max-bytes", options.max_bytes, "largest size; " + held)->capture_default_str()->check(bytes);
  app.add_option("--factor", options.factor, "from one size to the next")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--pool-bytes", options.pool_bytes, "memory that small sizes go through, one place after the other")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
}

std::vector<std::size_t> filtered(const std::vector<std::string>& names, const std::string& filter) {
  const bool without = !filter.empty() && filter.front() == '-';
  std::regex expression;
  try {
    expression = std::regex(filter == "all" ? "" : filter.substr(without ? 1 : 0));
  } catch (const std::regex_error& error) {
    throw UsageError(concat("--benchmark_filter '", filter, "' is no regular expression: ", error.what()));
  }
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (std::regex_search(names[i], expression) != without) {
      kept.push_back(i);
    }
  }
  require<UsageError>(!kept.empty(), "--benchmark_filter '", filter, "' leaves none of ", names.size(),
                      " benchmarks; --benchmark_list_tests prints their names");
  return kept;
}

MeasureOptions parse_min_time(const std::string& text) {
  const std::string last = text.empty() ? "" : text.substr(text.size() - 1);
  const bool iterations = last == "x";
  const std::string number = iterations || last == "s" ? text.substr(0, text.size() - 1) : text;
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  const bool all = !number.empty() && *end == '\0' && number.find_first_not_of("0123456789.eE+-") == std::string::npos;
  MeasureOptions options;
  if (iterations) {
    const auto count = static_cast<std::int64_t>(all && value >= 1 && value <= 1e9 ? value : 0);
    require<UsageError>(count >= 1 && static_cast<double>(count) == value, "--benchmark_min_time is '", text,
                        "', expected seconds, as 0.5, or a number of iterations, as 20x");
    options.target_seconds = 0;
    options.min_iterations = options.max_iterations = count;
    return options;
  }
  require<UsageError>(all && value >= 0 && value <= 1e6, "--benchmark_min_time is '", text,
                      "', expected seconds, as 0.5, or a number of iterations, as 20x");
  options.target_seconds = value;
  return options;
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

int run_benchmarks(comm::Session& session, const RunnerOptions& options, const RunContext& context,
                   const std::vector<Benchmark>& benchmarks, const std::function<std::vector<Conclusion>()>& conclude) {
  const bool prints = session.rank() == 0;
  MeasureOptions measure_options;
  std::vector<std::size_t> chosen;
  std::ofstream file;
  // Rank 0's names: a rank may call its own GPU by another number.
  const std::vector<std::string> names = names_of_rank_0(session, benchmarks);
  session.agree([&] {
    chosen = filtered(names, options.filter);
    measure_options = parse_min_time(options.min_time);
    if (prints && !options.out.empty() && !options.list_tests) {
      file.open(options.out);
      require<DataError>(file.good(), options.out, ": cannot be written");
    }
  });
  std::size_t width = 9;
  for (const std::size_t i : chosen) {
    width = std::max(width, names[i].size() + (options.repetitions > 1 ? std::strlen("_stddev") : 0));
    if (options.list_tests && prints) {
      std::printf("%s\n", names[i].c_str());
    }
  }
  if (options.list_tests) {
    return exit_code::kFinished;
  }
  const RunContext all = full_context(session, context);
  if (prints) {
    for (const auto& [name, value] : all) {
      std::printf("%s: %s\n", name.c_str(), value.c_str());
    }
    std::printf("\n%s\n", console_heading(width).c_str());
  }
  std::vector<ReportLine> lines;
  const auto add = [&](const ReportLine& line) {
    lines.push_back(line);
    if (prints) {
      std::printf("%s\n", console_row(line, width).c_str());
      std::fflush(stdout);
    }
  };
  for (const std::size_t i : chosen) {
    const std::size_t first = lines.size();
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      add(report_line(names[i], benchmarks[i].run(measure_options), options.repetitions, repetition));
    }
    if (options.repetitions > 1) {
      const std::vector<ReportLine> runs(lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end());
      for (const ReportLine& line : aggregates(runs)) {
        add(line);
      }
    }
  }
  session.agree([&] {
    const std::vector<Conclusion> conclusions = prints && conclude ? conclude() : std::vector<Conclusion>{};
    for (const Conclusion& each : conclusions) {
      std::printf("%s: %s\n", each.name.c_str(), each.text.c_str());
    }
    if (file.is_open()) {
      file << report_json(all, lines, conclusions);
      file.close();
      require<DataError>(!file.fail(), options.out, ": writing failed");
    }
  });
  return exit_code::kFinished;
}

}  // namespace lockstep::bench
