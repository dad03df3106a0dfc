// mpirun -np N lockstep-cost --out DIR: what copies, all-reduces and messages cost here, in two minutes. docs/cost.md

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <lockstep/comm/cpu_share.hpp>
#include <lockstep/comm/rank_device.hpp>
#include <lockstep/comm/session.hpp>
#include <lockstep/comm/text.hpp>
#include <lockstep/nn/cost_file.hpp>
#include <lockstep/nn/file.hpp>
#include <lockstep/runtime/version.hpp>

#include "tools/lockstep_cost/report.hpp"
#include "tools/lockstep_cost/survey.hpp"
#include "tools/lockstep_cost/units.hpp"
#include "tools/lockstep_devices/host_facts.hpp"
#include "tools/lockstep_devices/nvml.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using lockstep_cost::Progress;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string out;
  std::string devices = "auto";
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

/// One line that renews itself on a terminal; elsewhere a line every ten seconds.
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

/// The device of this rank, and what a report says when that is the host.
void place(comm::Session& session, const Options& options, lockstep_cost::SurveyOptions& survey) {
  DeviceRequest request;
  session.agree([&] { request = DeviceRequest::parse(options.devices); });
  const comm::RankDevice placed = comm::device_of_rank(session, request);
  survey.device = placed.device;
  if (placed.device == Device::cpu()) {
    survey.gpu_missing = options.devices.starts_with("cpu") ? "The GPU half: the host was asked for (--devices)."
                                                            : "The GPU half: this machine has no GPU that this build "
                                                              "can use, so only host memory and MPI were measured.";
    return;
  }
  survey.gpu_missing = "All-reduces between GPUs: ranks on GPUs have no communicator of their own yet.";
  session.agree([&] {
    const std::vector<GpuInfo> gpus = list_gpus();
    const GpuInfo& mine = gpus.at(static_cast<std::size_t>(placed.device.index));
    const tools::PciFacts pci = tools::read_pci(mine.pci);
    survey.host_link = lockstep_cost::pcie_limit(pci.generation, pci.width);
    if (gpus.size() < 2) {
      return;
    }
    const GpuInfo& next = gpus.at((static_cast<std::size_t>(placed.device.index) + 1) % gpus.size());
    survey.peer = Device::cuda(next.index);
    std::string why;
    if (const std::unique_ptr<tools::Nvml> nvml = tools::Nvml::open(why); nvml != nullptr) {
      survey.peer_link = lockstep_cost::nvlink_limit(mine.major, nvml->link(mine.uuid, next.uuid).nvlinks);
    }
  });
  // All ranks measure the same paths.
  const std::vector<double> peers = comm::all_gather_value(session.control(), survey.peer ? 1 : 0);
  if (*std::min_element(peers.begin(), peers.end()) == 0) {
    survey.peer.reset();
    survey.gpu_missing += " Copies between GPUs: not every process sees two.";
  }
}

void write(const std::string& folder, const nn::CostFile& file) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<DataError>(!error, folder, ": cannot be made: ", error.message());
  nn::replace_file(folder + "/cost.json", nn::cost_text(file));
  for (const auto& [name, svg] : lockstep_cost::plots(file)) {
    nn::replace_file(concat(folder, "/", name), svg);
  }
  nn::replace_file(folder + "/cost.md", lockstep_cost::report(file));
}

int run(comm::Session& session, int argc, char** argv) {
  const bool first = session.rank() == 0;
  Options options;
  CLI::App app(
      "What moving data costs on this machine: copies, all-reduces, messages between ranks. Fits latency and "
      "bandwidth\n"
      "(alpha-beta) to every path, holds them against limits, and writes a report, plots and a file for --cost of\n"
      "train_resnet. mpirun -np N lockstep-cost --out DIR",
      "lockstep-cost");
  app.set_version_flag("--version", build_description());
  app.add_option("--out", options.out, "folder for cost.json, cost.md and plots; what is there is replaced")
      ->required();
  app.add_option("--seconds", options.seconds, "to measure for, about")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option("--max-bytes", options.max_bytes, "the largest size; the smallest is 8 bytes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{8}, std::int64_t{1} << 34));
  app.add_option("--threads", options.threads, "of a rank, for copies; 0: its share of the processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  app.add_option("--devices", options.devices, "whose memory: auto, cpu, gpu, ... (docs/devices.md)")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return first ? app.exit(e) : 0;
  } catch (const CLI::ParseError& e) {
    session.agree([&] { throw UsageError(std::string(e.what()) + " (--help lists the options)"); });
  }

  lockstep_cost::SurveyOptions survey{.seconds = options.seconds, .max_bytes = options.max_bytes};
  place(session, options, survey);
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
  nn::CostFile file = lockstep_cost::survey(session, survey, [&](const Progress& progress) { line(progress); });
  line.end();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const tools::HostFacts cpu = tools::read_host();
  file.about = {{"date", date()},
                {"host", session.host()},
                {"cpu", concat(cpu.processor.empty() ? "?" : cpu.processor, ", ", cpu.processors, " processors")},
                {"build", build_description()},
                {"mpi", session.description()},
                {"threads", concat(survey.threads, " a rank; ", share.description())},
                {"duration", concat(lockstep_cost::digits(seconds, 0), " s")}};
  std::string command = concat("mpirun -np ", session.size(), " lockstep-cost");
  for (int i = 1; i < argc; ++i) {
    command += concat(" ", argv[i]);
  }
  file.about["command"] = command;
  if (!(survey.device == Device::cpu())) {
    file.about["gpu"] = list_gpus().at(static_cast<std::size_t>(survey.device.index)).name;
  }

  session.agree([&] {
    if (first) {
      write(options.out, file);
    }
  });
  if (first) {
    for (std::string text : lockstep_cost::remember(file)) {
      for (std::size_t at = text.find("**"); at != std::string::npos; at = text.find("**")) {
        text.erase(at, 2);
      }
      std::printf("  %s\n", text.c_str());
    }
    for (const std::string& text : file.left_out) {
      std::printf("  Left out. %s\n", text.c_str());
    }
    std::printf("  %s/cost.md, cost.json and %zu plots, after %.0f s\n", options.out.c_str(),
                lockstep_cost::plots(file).size(), seconds);
  }
  return exit_code::kFinished;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run);
}
