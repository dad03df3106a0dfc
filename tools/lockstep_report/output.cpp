#include "tools/lockstep_report/output.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::tools {
namespace {

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

}  // namespace

Output::Output(std::string path) : path_(std::move(path)) {
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

bool Output::harms(const std::string& file) const {
  struct stat standard {};
  struct stat there {};
  return printed() ? ::fstat(STDOUT_FILENO, &standard) == 0 && ::stat(file.c_str(), &there) == 0 &&
                         same_thing(standard, there)
                   : same_file(path_, file);
}

void Output::begin() {
  if (place_ == Place::file) {
    file_.emplace(path_);
  }
}

void Output::write(const std::string& text) {
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

void Output::write_in_place(const std::string& text) const {
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
    require<UsageError>(table->printed() || page->printed() || table->in_place() || page->in_place() ||
                            !same_file(table->path(), page->path()),
                        "--csv and --html are both ", printable(table->path()), ", expected two files");
  }
}

}  // namespace lockstep::tools
