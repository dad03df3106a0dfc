// lockstep-report OUT...: a page of the curves of a run, or of several. One process, no mpirun.

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "cli/run_alone.hpp"
#include "tools/lockstep_report/page.hpp"

int main(int argc, char** argv) {
  using namespace lockstep;
  CLI::App app(
      "Writes a page (HTML, no scripts, one file) of a run from its folder of results: a table, curves of loss,\n"
      "accuracy, learning rate, throughput, exposed communication and metrics of your own, the last evaluation\n"
      "(confusion, calibration, worst samples), and the settings; of several\n"
      "runs in the same charts, with the settings that differ. Steps that a resume trained again are shown once.\n\n"
      "Exit codes: 0; 2 a folder without metrics.jsonl, a damaged line, or a page that cannot be made; 3 a full disk.",
      "lockstep-report");
  std::vector<std::string> paths;
  std::string page;
  app.add_option("OUT", paths, "folders of results (train_resnet --out), or files like metrics.jsonl")->required();
  app.add_option("--html", page, "of the page; an older one is replaced (default: report.html in the first folder)");
  return cli::run_alone(app, argc, argv, [&] {
    const std::string text = tools::page_of(tools::read_runs(paths));
    if (page.empty()) {
      const std::filesystem::path first(paths.front());
      std::error_code error;
      page = ((std::filesystem::is_directory(first, error) ? first : first.parent_path()) / "report.html").string();
    }
    replace_file(page, text);
    std::printf("%s\n", page.c_str());
    return exit_code::kFinished;
  });
}
