#include "tools/lockstep_report/output.hpp"

#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::tools {
namespace {

/// Returns true if `one` and `other` describe the same file or device. fs::equivalent() does not compare devices.
bool same_thing(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// Returns true if the paths `one` and `other` lead to one existing file, or spell the name of one missing file.
bool same_file(const std::string& one, const std::string& other) {
  struct stat first {};
  struct stat second {};
  const bool is_first = ::stat(one.c_str(), &first) == 0;
  const bool is_second = ::stat(other.c_str(), &second) == 0;
  if (is_first && is_second) {
    return same_thing(first, second);
  }
  namespace fs = std::filesystem;
  std::error_code error;  // set if the folder of a path is missing, so no file can be made there
  const fs::path first_name = fs::weakly_canonical(fs::absolute(one), error);
  const fs::path second_name = error ? fs::path() : fs::weakly_canonical(fs::absolute(other), error);
  return !is_first && !is_second && !error && first_name == second_name;
}

}  // namespace

Output::Output(std::string path) : path_(std::move(path)) {
  struct stat there {};
  struct stat standard {};
  printed_ =
      path_ == "-" || path_ == "/dev/stdout" ||
      (::stat(path_.c_str(), &there) == 0 && ::fstat(STDOUT_FILENO, &standard) == 0 && same_thing(there, standard));
}

bool Output::harms(const std::string& file) const {
  struct stat standard {};
  struct stat there {};
  return printed() ? ::fstat(STDOUT_FILENO, &standard) == 0 && ::stat(file.c_str(), &there) == 0 &&
                         same_thing(standard, there)
                   : same_file(path_, file);
}

void Output::begin() {
  if (!printed_) {
    file_.emplace(path_);
  }
}

void Output::write(const std::string& text) {
  if (printed_) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  try {
    file_->write(std::as_bytes(std::span(text)));
    file_->commit();
  } catch (const FileError& failure) {
    throw WriteError(failure.what());
  }
}

void require_apart(const std::vector<RunLog>& runs, const Output* table, const Output* page) {
  for (const Output* const output : {table, page}) {
    if (output == nullptr) {
      continue;
    }
    for (const RunLog& run : runs) {
      for (const std::string& file : run.files) {
        require<UsageError>(!output->harms(file), printable(output->path()), ": is what was read (", printable(file),
                            "), expected another file to write");
      }
    }
  }
  if (table != nullptr && page != nullptr) {
    require<UsageError>(!table->printed() || !page->printed(),
                        "--csv and --html both go to standard output, expected one of them there");
    require<UsageError>(table->printed() || page->printed() || !same_file(table->path(), page->path()),
                        "--csv and --html are both ", printable(table->path()), ", expected two files");
  }
}

}  // namespace lockstep::tools
