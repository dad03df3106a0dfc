// lockstep-report OUT...: a page of the curves of a run, or of several, or their log as a table. One process, no
// mpirun.

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "cli/run_alone.hpp"
#include "tools/lockstep_report/csv.hpp"
#include "tools/lockstep_report/page.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

/// /dev/stdout too: a file is replaced by renaming, which would take that name from the system.
bool is_standard_output(const std::string& path) {
  return path == "-" || path == "/dev/stdout";
}

/// report.html in the first folder.
std::string default_page(const std::string& first) {
  const std::filesystem::path path(first);
  std::error_code error;
  return ((std::filesystem::is_directory(path, error) ? path : path.parent_path()) / "report.html").string();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes a page (HTML, no scripts, one file) of a run from its folder of results: a table, curves of loss,\n"
      "accuracy, learning rate, throughput, exposed communication and metrics of your own, the last evaluation\n"
      "(confusion, calibration, worst samples), and the settings; of several\n"
      "runs in the same charts, with the settings that differ. Steps that a resume trained again are shown once.\n\n"
      "  lockstep-report OUT                                OUT/report.html\n"
      "  lockstep-report OUT1 OUT2 --csv runs.csv           a table for pandas, R, gnuplot and spreadsheets, no page\n"
      "  lockstep-report OUT --csv - | column -s, -t        on standard output\n\n"
      "The table has a line of names, then a line for each report (event step) and each epoch (event epoch): run,\n"
      "event, epoch, step, then a column for each value that some run has; empty where there is none.\n\n"
      "Exit codes: 0; 2 a folder without metrics.jsonl, a damaged line, or a file that cannot be made; 3 a full disk.",
      "lockstep-report");
  std::vector<std::string> paths;
  std::string page;
  std::string table;
  app.add_option("OUT", paths, "folders of results (train_resnet --out), or files like metrics.jsonl")->required();
  const CLI::Option* const html = app.add_option(
      "--html", page,
      "of the page; an older one is replaced (default: report.html in the first folder; with --csv: no page)");
  const CLI::Option* const csv = app.add_option(
      "--csv", table,
      "write the values as comma-separated values to this file; an older one is replaced. -: to standard output,\n"
      "where nothing else is written then");
  return cli::run_alone(app, argc, argv, [&] {
    require<UsageError>(csv->count() == 0 || !table.empty(),
                        "--csv is empty, expected a file, or - for standard output");
    const std::vector<tools::RunLog> runs = tools::read_runs(paths);
    const bool printed = is_standard_output(table);
    std::FILE* const told = printed ? stderr : stdout;
    if (csv->count() > 0) {
      const std::string text = tools::csv_of(runs);
      if (printed) {
        std::fwrite(text.data(), 1, text.size(), stdout);
      } else {
        replace_file(table, text);
        std::fprintf(told, "%s\n", table.c_str());
      }
    }
    if (csv->count() == 0 || html->count() > 0) {
      const std::string file = page.empty() ? default_page(paths.front()) : page;
      replace_file(file, tools::page_of(runs));
      std::fprintf(told, "%s\n", file.c_str());
    }
    return exit_code::kFinished;
  });
}
