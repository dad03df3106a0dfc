// mpirun -np N lockstep-cost --out DIR: measures the cost of copies, all-reduces and messages on this machine, in about
// a minute. docs/cost.md explains the results.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/base/version.hpp>

#include "app/cli/command_line.hpp"
#include "app/cli/config_file.hpp"
#include "app/cli/launch_options.hpp"
#include "tools/lockstep_cost/placement.hpp"
#include "tools/lockstep_cost/results.hpp"
#include "tools/lockstep_cost/survey.hpp"
#include "tools/lockstep_devices/host_facts.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using tools::Progress;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string out;
  cli::LaunchOptions launch{};
  comm::RanksRequest ranks{};
  double seconds = 60;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  int threads = 0;
};

/// Prints progress: on a terminal one line that is overwritten, elsewhere a line every ten seconds.
class ProgressLine {
 public:
  explicit ProgressLine(bool on) : on_(on), terminal_(isatty(STDERR_FILENO) != 0) {}
  void operator()(const Progress& progress) {
    const double silent = std::chrono::duration<double>(Clock::now() - said_).count();
    if (!on_ || (!terminal_ && silent < 10)) {
      return;
    }
    said_ = Clock::now();
    std::fprintf(stderr,
                 terminal_ ? "\r%d of %d paths, about %.0f s left: %-40s" : "%d of %d paths, about %.0f s left: %s\n",
                 progress.done, progress.paths, progress.seconds_left, progress.what.c_str());
    std::fflush(stderr);
  }
  void end() const {
    if (on_ && terminal_) {
      std::fprintf(stderr, "\r%-79s\r", "");
    }
  }

 private:
  bool on_;
  bool terminal_;
  Clock::time_point said_ = Clock::now() - std::chrono::hours(1);
};

/// The options, or a text to print instead of measuring (--help, --version).
struct Parsed {
  Options options{};
  std::string text{};
};

/// Parses the command line; `config` is the file of --config. Throws UsageError for invalid options.
Parsed parse(int argc, const char* const* argv, const cli::ConfigFile& config) {
  Options options;
  CLI::App app(
      "Measures what moving data costs on this machine: copies, all-reduces, messages between ranks. Fits\n"
      "latency and bandwidth (alpha-beta) to every path, compares the paths with limits, and writes a\n"
      "report, plots and a file for train_resnet --cost.\n\n"
      "  mpirun -np N lockstep-cost --out DIR             N ranks of mpirun\n"
      "  lockstep-cost --devices cpu:N --out DIR          N ranks on this machine's CPU",
      "lockstep-cost");
  app.add_option("--out", options.out, "folder for cost.json, cost.md and plots; older files are replaced")->required();
  app.add_option("--seconds", options.seconds, "approximate time of all measurements, in seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option("--max-bytes", options.max_bytes, "largest size in bytes; the smallest is 8 bytes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{8}, std::int64_t{1} << 34));
  app.add_option("--threads", options.threads, "threads of each rank for copies; 0: the rank's share of the processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  lockstep::Schema launch;
  cli::describe(launch, options.launch);
  cli::add_options(app, launch);
  const std::string text = cli::parse_command_line(app, argc, argv, config);
  if (!text.empty()) {
    return {.text = text};
  }
  launch.check();
  options.ranks = cli::ranks_request(options.launch);
  return {.options = options};
}

int run(comm::Session& session, int argc, char** argv) {
  const bool first = session.rank() == 0;
  Parsed parsed;
  const cli::ConfigFile config = cli::read_config_file(session, argc, argv);
  session.agree([&] { parsed = parse(argc, argv, config); });
  comm::require_same_on_all_ranks(session.control(), comm::arguments_text(argc, argv));
  if (!parsed.text.empty()) {
    if (first) {
      std::printf("%s", parsed.text.c_str());
    }
    return exit_code::kFinished;
  }
  const Options& options = parsed.options;
  comm::require_ranks_as_requested(session, options.ranks);
  session.agree([&] {
    if (first) {
      tools::require_writable(options.out);
    }
  });

  tools::SurveyOptions survey{.seconds = options.seconds, .max_bytes = options.max_bytes};
  const comm::RankDevice placed =
      tools::place(session, options.ranks.devices, survey);  // `placed` holds the claims of usable:N until the end
  // Binds the rank before cpu_share() describes its processors.
  session.agree([&] { (void)cli::bind_rank(options.launch, placed.device); });
  const comm::CpuShare share = comm::cpu_share(session);
  survey.threads = options.threads > 0 ? options.threads : share.threads();
  if (first) {
    std::printf("%s\n%s on %s, %s\n", build_description().c_str(), counted(session.size(), "rank").c_str(),
                counted(session.nodes(), "node").c_str(), session.description().c_str());
    std::fflush(stdout);
  }

  const Clock::time_point begin = Clock::now();
  ProgressLine line(first);
  comm::CostFile file = tools::survey(session, survey, [&](const Progress& progress) { line(progress); });
  line.end();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const tools::HostFacts cpu = tools::read_host();
  file.about = {{"date", tools::date()},
                {"host", session.host()},
                {"cpu", concat(cpu.processor.empty() ? "?" : cpu.processor, ", ", cpu.processors, " processors")},
                {"build", build_description()},
                {"mpi", session.description()},
                {"threads", concat(survey.threads, " a rank; ", share.description())},
                {"duration", concat(digits(seconds, 0), " s")}};
  file.about["command"] = tools::command_of(session, argc, argv);
  if (!(survey.device == Device::cpu())) {
    file.about["gpu"] = concat(list_gpus().at(static_cast<std::size_t>(survey.device.index)).name,
                               placed.note.empty() ? "" : ", ", placed.note);
  }

  session.agree([&] {
    if (first) {
      tools::write(options.out, file);
    }
  });
  if (first) {
    std::printf("%s", tools::summary(options.out, file, seconds).c_str());
  }
  return exit_code::kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  return comm::run_program(argc, argv, run, [&]() -> std::optional<comm::RanksRequest> {
    const Parsed parsed = parse(argc, argv, cli::read_config_file(argc, argv));
    return parsed.text.empty() ? std::optional(parsed.options.ranks) : std::nullopt;
  });
}
