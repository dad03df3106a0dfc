// lockstep-report OUT...: a page of the curves of a run, or of several, or their log as a table. One process, no
// mpirun.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "cli/run_alone.hpp"
#include "tools/lockstep_report/csv.hpp"
#include "tools/lockstep_report/page.hpp"
#include "tools/lockstep_report/run_log.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

/// Whether both lead to the same thing that is there. fs::equivalent() refuses two devices.
bool same_thing(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// Whether writing to one would harm the other: one file, or two spellings of one name for a file that is not there.
bool same_file(const std::string& one, const std::string& other) {
  struct stat first {};
  struct stat second {};
  const bool is_first = ::stat(one.c_str(), &first) == 0;
  const bool is_second = ::stat(other.c_str(), &second) == 0;
  if (is_first && is_second) {
    return same_thing(first, second);
  }
  namespace fs = std::filesystem;
  std::error_code error;  // of a folder that is not there, where no file can be made either
  const fs::path first_name = fs::weakly_canonical(fs::absolute(one), error);
  const fs::path second_name = error ? fs::path() : fs::weakly_canonical(fs::absolute(other), error);
  return !is_first && !is_second && !error && first_name == second_name;
}

/// What is written, to where. A file appears whole, in place of an older one; a character device, a FIFO and
/// /dev/stderr are written into, as renaming a file would take their names from the system; -, /dev/stdout and what
/// else leads to standard output are standard output.
class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)) {
    struct stat there {};
    struct stat standard {};
    const bool is_there = path_ != "-" && ::stat(path_.c_str(), &there) == 0;
    if (path_ == "-" || path_ == "/dev/stdout" ||
        (is_there && ::fstat(STDOUT_FILENO, &standard) == 0 && same_thing(there, standard))) {
      place_ = Place::standard_output;
    } else if (is_there && (S_ISCHR(there.st_mode) || S_ISFIFO(there.st_mode) || names_descriptor(path_))) {
      place_ = Place::in_place;  // opened late: opening a FIFO waits for its reader, who may read another first
    }
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool printed() const { return place_ == Place::standard_output; }
  [[nodiscard]] bool in_place() const { return place_ == Place::in_place; }
  /// Whether writing would harm this file.
  [[nodiscard]] bool harms(const std::string& file) const {
    struct stat standard {};
    struct stat there {};
    return printed() ? ::fstat(STDOUT_FILENO, &standard) == 0 && ::stat(file.c_str(), &there) == 0 &&
                           same_thing(standard, there)
                     : same_file(path_, file);
  }

  /// Makes a file beside the name: one that cannot be made is an error before anything is written.
  void begin() {
    if (place_ == Place::file) {
      file_.emplace(path_);
    }
  }

  void write(const std::string& text) {
    if (place_ == Place::standard_output) {
      std::fwrite(text.data(), 1, text.size(), stdout);
    } else if (place_ == Place::in_place) {
      write_in_place(text);
    } else {
      try {
        file_->write(std::as_bytes(std::span(text)));
        file_->commit();
      } catch (const FileError& failure) {
        throw WriteError(failure.what());
      }
    }
  }

 private:
  enum class Place { file, in_place, standard_output };

  void write_in_place(const std::string& text) const {
    const int descriptor = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    require<FileError>(descriptor >= 0, path_, ": cannot be opened: ", std::strerror(errno));
    std::FILE* const out = ::fdopen(descriptor, "w");
    require<FileError>(out != nullptr, path_, ": cannot be opened: ", std::strerror(errno));
    const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
    const int error = errno;
    const bool closed = std::fclose(out) == 0;
    require<WriteError>(written, path_, ": cannot be written: ", std::strerror(error));
    require<WriteError>(closed, path_, ": cannot be closed: ", std::strerror(errno));
  }

  std::string path_;
  Place place_ = Place::file;
  std::optional<AtomicFile> file_{};
};

/// UsageError for an output that would overwrite what was read, or another output.
void require_apart(const std::vector<tools::RunLog>& runs, const Output* table, const Output* page) {
  for (const Output* const output : {table, page}) {
    if (output == nullptr) {
      continue;
    }
    for (const tools::RunLog& run : runs) {
      for (const std::string& file : run.files) {
        require<UsageError>(!output->harms(file), printable(output->path()), ": is what was read (", printable(file),
                            "), expected another file to write");
      }
    }
  }
  if (table != nullptr && page != nullptr) {
    require<UsageError>(!table->printed() || !page->printed(),
                        "--csv and --html both go to standard output, expected one of them there");
    require<UsageError>(table->printed() || page->printed() || table->in_place() || page->in_place() ||
                            !same_file(table->path(), page->path()),
                        "--csv and --html are both ", printable(table->path()), ", expected two files");
  }
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
      "Exit codes: 0; 2 a folder without metrics.jsonl, a damaged line, or a file that cannot be made; 3 a full disk.\n"
      "A character device or FIFO as FILE is written into.",
      "lockstep-report");
  std::vector<std::string> paths;
  std::string page;
  std::string table;
  app.add_option("OUT", paths, "folders of results (train_resnet --out), or files like metrics.jsonl")->required();
  const CLI::Option* const html = app.add_option(
      "--html", page,
      "of the page; an older one is replaced (default: report.html in the first folder; with --csv: no page). -: to\n"
      "standard output, where nothing else is written then");
  const CLI::Option* const csv = app.add_option(
      "--csv", table,
      "write the values as comma-separated values to this file; an older one is replaced. -: to standard output,\n"
      "where nothing else is written then");
  return cli::run_alone(app, argc, argv, [&] {
    require<UsageError>(csv->count() == 0 || !table.empty(),
                        "--csv is empty, expected a file, or - for standard output");
    require<UsageError>(html->count() == 0 || !page.empty(),
                        "--html is empty, expected a file, or - for standard output");
    const std::vector<tools::RunLog> runs = tools::read_runs(paths);
    std::optional<Output> table_out;
    std::optional<Output> page_out;
    if (csv->count() > 0) {
      table_out.emplace(table);
    }
    if (csv->count() == 0 || html->count() > 0) {
      page_out.emplace(html->count() > 0 ? page : default_page(paths.front()));
    }
    require_apart(runs, table_out ? &*table_out : nullptr, page_out ? &*page_out : nullptr);
    const bool printed = (table_out && table_out->printed()) || (page_out && page_out->printed());
    for (std::optional<Output>* const output : {&table_out, &page_out}) {
      if (*output) {
        (*output)->begin();
      }
    }
    for (const bool in_place : {false, true}) {  // files first: the reader of a FIFO may never come
      for (std::optional<Output>* const output : {&table_out, &page_out}) {
        if (!*output || (*output)->in_place() != in_place) {
          continue;
        }
        (*output)->write(output == &table_out ? tools::csv_of(runs) : tools::page_of(runs));
        if (!(*output)->printed()) {
          std::fprintf(printed ? stderr : stdout, "%s\n", (*output)->path().c_str());
        }
      }
    }
    return exit_code::kFinished;
  });
}
