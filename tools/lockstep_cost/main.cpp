// mpirun -np N lockstep-cost --out DIR: what copies, all-reduces and messages cost here, in about a minute.
// docs/cost.md

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <lockstep/comm/gradients/cost_file.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "cli/command_line.hpp"
#include "cli/config_file.hpp"
#include "cli/launch_options.hpp"
#include "tools/lockstep_cost/report.hpp"
#include "tools/lockstep_cost/survey.hpp"
#include "tools/lockstep_devices/host_facts.hpp"
#include "tools/lockstep_devices/nvml.hpp"

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

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return text.data();
}

/// One line that is overwritten on a terminal; elsewhere a line every ten seconds.
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

/// The UUIDs of the GPUs of this node's ranks, in their order; for a single rank, of the GPUs that were asked for.
std::vector<std::string> gpus_of_node(comm::Session& session, const DeviceRequest& request,
                                      const std::vector<GpuInfo>& gpus, const std::string& mine) {
  std::vector<std::string> given;
  session.agree([&] {
    if (session.local_size() > 1) {
      return;
    }
    if (std::holds_alternative<DeviceRequest::Usable>(request.form())) {
      given = {mine};
      return;
    }
    for (const Device& device : select_devices(request, gpus).devices) {
      given.push_back(gpus.at(static_cast<std::size_t>(device.index)).uuid);
    }
  });
  const std::vector<std::string> all = comm::all_gather_text(session.control(), concat(session.node(), ' ', mine));
  const std::string own_node = concat(session.node(), ' ');
  for (const std::string& text : all) {
    if (session.local_size() > 1 && text.starts_with(own_node)) {
      given.push_back(text.substr(own_node.size()));
    }
  }
  return given;
}

/// The device of this rank, and what a report says when that is the host. Keep the result's claims until measuring
/// ends.
comm::RankDevice place(comm::Session& session, const Options& options, tools::SurveyOptions& survey) {
  const DeviceRequest request = options.ranks.devices;
  comm::RankDevice placed = comm::place_rank(session, request);
  survey.device = placed.device;
  survey.shares_device = placed.shared;
  if (placed.device == Device::cpu()) {
    survey.gpu_missing = request.text().starts_with("cpu") ? "The GPU half: the host was asked for (--devices)."
                                                           : "The GPU half: this machine has no GPU that this build "
                                                             "can use, so only host memory and MPI were measured.";
    return placed;
  }
  std::vector<GpuInfo> gpus;
  GpuInfo mine;
  session.agree([&] {
    gpus = list_gpus();
    mine = gpus.at(static_cast<std::size_t>(placed.device.index));
  });
  const std::vector<std::string> given = gpus_of_node(session, request, gpus, mine.uuid);
  session.agree([&] {
    const tools::PciFacts pci = tools::read_pci(mine.pci);
    survey.host_link = tools::pcie_limit(pci.generation, pci.width);
    survey.peer = tools::peer_gpu(gpus, mine.uuid, given);
    std::string why;
    if (const std::unique_ptr<tools::Nvml> nvml = tools::Nvml::open(why); nvml != nullptr) {
      const tools::NvmlGpu facts = nvml->gpu(mine.uuid);
      survey.device_memory = tools::device_memory_limit(facts.memory_clock_mhz, facts.memory_bus_bits);
      if (survey.peer) {
        const GpuInfo& next = gpus.at(static_cast<std::size_t>(survey.peer->index));
        const tools::PciFacts other = tools::read_pci(next.pci);
        survey.peer_link = tools::peer_limit(mine.major, nvml->link(mine.uuid, next.uuid).nvlinks, survey.host_link,
                                             tools::pcie_limit(other.generation, other.width));
      }
    }
  });
  // All ranks measure the same paths.
  const std::vector<double> peers = comm::all_gather_value(session.control(), survey.peer ? 1 : 0);
  if (*std::min_element(peers.begin(), peers.end()) == 0) {
    survey.peer.reset();
    survey.gpu_missing = "Copies between GPUs: not every rank has a second one that was asked for and that it sees.";
  }
  return placed;
}

/// Checks the folder before minutes are spent on results that could not be written.
void require_writable(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<DataError>(!error, folder, ": cannot be made: ", error.message());
  const std::string probe = concat(folder, "/.probe-", getpid());
  replace_file(probe, "");
  std::filesystem::remove(probe, error);
}

/// The command that repeats this run.
std::string command_of(const comm::Session& session, int argc, char** argv) {
  const comm::Launch& launch = session.launch();
  std::string command = "lockstep-cost";
  if (launch.started_with.empty() && session.size() > 1) {
    const bool srun = launch.source == comm::LaunchSource::slurm;
    command = concat(srun ? "srun -n " : "mpirun -np ", session.size(), " ", command);
  }
  for (int i = 1; i < argc; ++i) {
    command += concat(" ", argv[i]);
  }
  return command;
}

void write(const std::string& folder, const comm::CostFile& file) {
  std::error_code error;
  replace_file(folder + "/cost.json", comm::cost_text(file));
  for (const char* name : tools::kPlotNames) {  // plots of an earlier run with more ranks
    std::filesystem::remove(concat(folder, "/", name), error);
  }
  for (const auto& [name, svg] : tools::plots(file)) {
    replace_file(concat(folder, "/", name), svg);
  }
  replace_file(folder + "/cost.md", tools::report(file));
}

/// The options, or a text to print instead of a run (--help, --version).
struct Parsed {
  Options options{};
  std::string text{};
};

/// Throws UsageError. `config`: the file of --config.
Parsed parse(int argc, const char* const* argv, const cli::ConfigFile& config) {
  Options options;
  CLI::App app(
      "What moving data costs on this machine: copies, all-reduces, messages between ranks. Fits latency and "
      "bandwidth\n"
      "(alpha-beta) to every path, holds them against limits, and writes a report, plots and a file for --cost of\n"
      "train_resnet. mpirun -np N lockstep-cost --out DIR, or lockstep-cost --devices cpu:N --out DIR",
      "lockstep-cost");
  app.add_option("--out", options.out, "folder for cost.json, cost.md and plots; what is there is replaced")
      ->required();
  app.add_option("--seconds", options.seconds, "approximate time to measure")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option("--max-bytes", options.max_bytes, "the largest size; the smallest is 8 bytes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{8}, std::int64_t{1} << 34));
  app.add_option("--threads", options.threads, "of a rank, for copies; 0: its share of the processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  cli::add_launch_options(app, options.launch, "Ranks");
  const std::string text = cli::parse_command_line(app, argc, argv, config);
  if (!text.empty()) {
    return {.text = text};
  }
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
      require_writable(options.out);
    }
  });

  tools::SurveyOptions survey{.seconds = options.seconds, .max_bytes = options.max_bytes};
  const comm::RankDevice placed = place(session, options, survey);  // holds the claims of usable:N until the end
  session.agree([&] { (void)cli::bind_rank(options.launch, placed.device); });  // the share tells
  const comm::CpuShare share = comm::cpu_share(session);
  survey.threads = options.threads > 0 ? options.threads : share.threads();
  if (first) {
    std::printf("%s\n%d rank%s on %d node%s, %s\n", build_description().c_str(), session.size(),
                session.size() == 1 ? "" : "s", session.nodes(), session.nodes() == 1 ? "" : "s",
                session.description().c_str());
    std::fflush(stdout);
  }

  const Clock::time_point begin = Clock::now();
  ProgressLine line(first);
  comm::CostFile file = tools::survey(session, survey, [&](const Progress& progress) { line(progress); });
  line.end();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const tools::HostFacts cpu = tools::read_host();
  file.about = {{"date", date()},
                {"host", session.host()},
                {"cpu", concat(cpu.processor.empty() ? "?" : cpu.processor, ", ", cpu.processors, " processors")},
                {"build", build_description()},
                {"mpi", session.description()},
                {"threads", concat(survey.threads, " a rank; ", share.description())},
                {"duration", concat(digits(seconds, 0), " s")}};
  file.about["command"] = command_of(session, argc, argv);
  if (!(survey.device == Device::cpu())) {
    file.about["gpu"] = concat(list_gpus().at(static_cast<std::size_t>(survey.device.index)).name,
                               placed.note.empty() ? "" : ", ", placed.note);
  }

  session.agree([&] {
    if (first) {
      write(options.out, file);
    }
  });
  if (first) {
    for (std::string text : tools::remember(file)) {
      for (std::size_t at = text.find("**"); at != std::string::npos; at = text.find("**")) {
        text.erase(at, 2);
      }
      std::printf("  %s\n", text.c_str());
    }
    for (const std::string& text : file.left_out) {
      std::printf("  Left out. %s\n", text.c_str());
    }
    std::printf("  %s/cost.md, cost.json and %zu plots, after %.0f s\n", options.out.c_str(), tools::plots(file).size(),
                seconds);
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
