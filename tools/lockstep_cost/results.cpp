#include "tools/lockstep_cost/results.hpp"

#include <array>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tools/lockstep_cost/report.hpp"

namespace lockstep::tools {

void require_writable(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<DataError>(!error, folder, ": cannot be made: ", error.message(),
                     "; expected a folder above it that this user may write");
  const std::string probe = concat(folder, "/.probe-", unique_suffix());
  replace_file(probe, "");
  std::filesystem::remove(probe, error);
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return text.data();
}

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
  for (const char* name : kPlotNames) {  // an earlier run with more ranks may have left plots
    std::filesystem::remove(concat(folder, "/", name), error);
  }
  for (const auto& [name, svg] : plots(file)) {
    replace_file(concat(folder, "/", name), svg);
  }
  replace_file(folder + "/cost.md", report(file));
}

std::string summary(const std::string& folder, const comm::CostFile& file, double seconds) {
  std::string out;
  for (std::string text : remember(file)) {
    for (std::size_t at = text.find("**"); at != std::string::npos; at = text.find("**")) {
      text.erase(at, 2);
    }
    out += concat("  ", text, "\n");
  }
  for (const std::string& text : file.left_out) {
    out += concat("  Left out. ", text, "\n");
  }
  return out + concat("  ", folder, "/cost.md, cost.json and ", plots(file).size(), " plots, after ",
                      digits(seconds, 0), " s\n");
}

}  // namespace lockstep::tools
