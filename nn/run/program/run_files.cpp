#include <lockstep/nn/run/program/run_files.hpp>

#include <filesystem>
#include <system_error>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

void RunFiles::lock_if_used(const std::string& folder) {
  if (FolderLock::known(folder)) {
    lock(folder);
  }
}

void RunFiles::lock(const std::string& folder) {
  try {
    if (!lock_) {
      lock_.emplace(folder);
    }
  } catch (UsageError& error) {
    error.annotate("--out");
    throw;
  }
}

void RunFiles::require_no_checkpoints(const std::string& folder) {
  std::string found;
  for (const char* name : {"last", "best"}) {
    if (!find_folder(concat(folder, '/', name)).empty()) {
      found += concat(found.empty() ? "" : " and ", name, '/');
    }
  }
  const std::string other = found == "best/" ? concat("--resume ", folder, "/best") : "--resume auto";
  require<UsageError>(found.empty(), "--out ", folder, " has checkpoints of an earlier run, ", found, ": expected ",
                      other, " to go on from them, --overwrite to delete them, or another folder");
}

void RunFiles::remove_results(const std::string& folder) {
  lock_if_used(folder);
  const auto remove = [](const std::string& path) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    require<FileError>(!error, path, ": cannot be deleted: ", error.message());
  };
  for (const char* name : {"last", "best", "metrics.jsonl"}) {
    remove(concat(folder, '/', name));
  }
  for (int number = 1; file_exists(concat(folder, "/last.", number)); ++number) {
    remove(concat(folder, "/last.", number));
  }
}

void RunFiles::open(const std::string& folder, const Json& config, bool append, std::ostream& out,
                    const Console::Options& console) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require<DataError>(!error, folder, ": cannot be made: ", error.message());
  lock(folder);
  replace_file(folder + "/config.json", config.text(2) + "\n");
  log_.emplace(folder + "/metrics.jsonl", append, console.samples);
  console_.emplace(out, console);
}

void RunFiles::on_run_begin(const RunBegin& event) {
  if (console_) {
    console_->on_run_begin(event);
  }
}
void RunFiles::on_report(const ReportEvent& event) {
  if (console_) {
    console_->on_report(event);
    log_->on_report(event);
  }
}
void RunFiles::on_epoch_end(const EpochEvent& event) {
  if (console_) {
    console_->on_epoch_end(event);
    log_->on_epoch_end(event);
  }
}
void RunFiles::on_run_end(const RunResult& result) {
  if (console_) {
    console_->on_run_end(result);
  }
}
void RunFiles::write_event(const std::string& name, Json::Object fields) {
  if (log_) {
    log_->write_event(name, std::move(fields));
  }
}
void RunFiles::on_end(int exit_code, const RunResult& result) {
  if (log_) {
    log_->on_end(exit_code, result);
  }
}

}  // namespace lockstep::nn
