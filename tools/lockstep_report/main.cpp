// lockstep-report OUT...: writes a page with the curves of one or several runs, or their logs as a table. One process,
// no mpirun.

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "app/cli/run_alone.hpp"
#include "tools/lockstep_report/csv.hpp"
#include "tools/lockstep_report/output.hpp"
#include "tools/lockstep_report/page.hpp"
#include "tools/lockstep_report/run_log.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

/// Returns the path of report.html in the first folder.
std::string default_page(const std::string& first) {
  const std::filesystem::path path(first);
  std::error_code error;
  return ((std::filesystem::is_directory(path, error) ? path : path.parent_path()) / "report.html").string();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes a page (one HTML file without scripts) about a run from its folder of results: a table;\n"
      "curves of loss, accuracy, learning rate, throughput, exposed communication and metrics of your own;\n"
      "the last evaluation (confusion, calibration, worst samples); and the settings. Several runs share\n"
      "the charts, and the page shows the settings that differ. Steps that a resumed run trained again are\n"
      "shown once.\n\n"
      "  lockstep-report OUT                                OUT/report.html\n"
      "  lockstep-report OUT1 OUT2 --csv runs.csv           a table for pandas, R, gnuplot and spreadsheets\n"
      "  lockstep-report OUT --csv - | column -s, -t        the table on standard output\n\n"
      "The table has a line of names, then a line for each report (event step) and each epoch (event\n"
      "epoch). Its columns are run, event, epoch, step, then each value that some run has. A value that is\n"
      "missing leaves its column empty.\n\n"
      "Exit codes: 0 finished; 2 a folder without metrics.jsonl, a damaged line, or a file that cannot be\n"
      "made; 3 a full disk.",
      "lockstep-report");
  std::vector<std::string> paths;
  std::string page;
  std::string table;
  app.add_option("OUT", paths, "folders of results (train_resnet --out), or files like metrics.jsonl")->required();
  const CLI::Option* const html =
      app.add_option("--html", page,
                     "file for the page; an older file is replaced; -: standard output, which then has nothing else "
                     "(default: report.html in the first folder; with --csv no page)");
  const CLI::Option* const csv = app.add_option("--csv", table,
                                                "file for the values as comma-separated values; an older file is "
                                                "replaced; -: standard output, which then has nothing else");
  return cli::run_alone(app, argc, argv, [&] {
    require<UsageError>(csv->count() == 0 || !table.empty(),
                        "--csv is empty, expected a file, or - for standard output");
    require<UsageError>(html->count() == 0 || !page.empty(),
                        "--html is empty, expected a file, or - for standard output");
    const std::vector<tools::RunLog> runs = tools::read_runs(paths);
    std::optional<tools::Output> table_out;
    std::optional<tools::Output> page_out;
    if (csv->count() > 0) {
      table_out.emplace(table);
    }
    if (csv->count() == 0 || html->count() > 0) {
      page_out.emplace(html->count() > 0 ? page : default_page(paths.front()));
    }
    tools::require_apart(runs, table_out ? &*table_out : nullptr, page_out ? &*page_out : nullptr);
    const bool printed = (table_out && table_out->printed()) || (page_out && page_out->printed());
    for (std::optional<tools::Output>* const output : {&table_out, &page_out}) {
      if (*output) {
        (*output)->begin();
      }
    }
    for (std::optional<tools::Output>* const output : {&table_out, &page_out}) {
      if (*output) {
        (*output)->write(output == &table_out ? tools::csv_of(runs) : tools::page_of(runs));
        if (!(*output)->printed()) {
          std::fprintf(printed ? stderr : stdout, "%s\n", (*output)->path().c_str());
        }
      }
    }
    return exit_code::kFinished;
  });
}
