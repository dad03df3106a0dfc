#include <lockstep/app/run_folder.hpp>

#include <filesystem>
#include <iostream>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/crc32.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

constexpr const char* kTensorBoard = "tensorboard";
constexpr const char* kEvaluation = "evaluation.json";
constexpr const char* kRollsBack = "goes_back";  // key in config.json that rolls_back() looks for

void replace_text(const std::string& path, const std::string& text) {
  try {
    replace_file(path, text);
  } catch (const FileError& failure) {
    throw WriteError(failure.what());
  }
}

/// Returns a text that identifies the checkpoint last/ in `folder`: "crc32 NUMBER", or "none" if there is none.
std::string last_of(const std::string& folder) {
  const std::string state = checkpoint_text(CheckpointStore(folder).path(CheckpointStore::kLast));
  return state.empty() ? "none" : concat("crc32 ", crc32_of(std::as_bytes(std::span(state))));
}

/// Deletes the unfinished files that killed calls of replace_file() for `name` have left in `folder`.
void remove_cut_files(const std::string& folder, const std::string& name) {
  const std::string begin = name + ".tmp-";
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string found = entry->path().filename().string();
    if (found.starts_with(begin) && is_unique_suffix(std::string_view(found).substr(begin.size()))) {
      std::error_code ignored;
      std::filesystem::remove(entry->path(), ignored);
    }
  }
}

}  // namespace

void RunFolder::lock_if_used(const std::string& folder) {
  if (FolderLock::known(folder)) {
    lock(folder);
  }
}

void RunFolder::name_holder() {
  if (lock_) {
    lock_->name_holder();
  }
}

void RunFolder::lock(const std::string& folder) {
  constexpr std::chrono::milliseconds kBetween{100};
  const auto end = std::chrono::steady_clock::now() + longest_wait_;
  while (!lock_) {
    try {
      lock_.emplace(folder);
    } catch (UsageError& error) {
      if (std::chrono::steady_clock::now() >= end) {
        error.annotate("--out");
        throw;
      }
      std::this_thread::sleep_for(kBetween);
    }
  }
}

std::string RunFolder::job_of(const std::string& folder) {
  const std::string path = folder + "/config.json";
  try {
    return read_json(path).get<std::string>("job", path);
  } catch (const Error&) {
    return "";
  }
}

bool RunFolder::rolls_back(const std::string& folder) {
  try {
    const std::string path = folder + "/config.json";
    const Json config = read_json(path);
    return config.has(kRollsBack) && config.get<std::string>(kRollsBack, path) == last_of(folder);
  } catch (const Error&) {
    return false;
  }
}

void RunFolder::require_no_checkpoints(const std::string& folder) {
  const auto with_slash = [](const std::string& name) { return name + '/'; };
  const std::string found = joined(CheckpointStore(folder).list(), " and ", with_slash);
  require<UsageError>(found.empty(), "--out ", folder, " has checkpoints of an earlier run, ", found,
                      ": expected --resume auto to go on from them, --overwrite to delete them, or another folder");
}

void RunFolder::remove_results(const std::string& folder) {
  lock_if_used(folder);
  for (const char* name : {kEvaluation, kTensorBoard}) {
    remove_tree(concat(folder, '/', name));
  }
  CheckpointStore(folder).remove();
  remove_tree(folder + "/metrics.jsonl");
}

RunFolder::~RunFolder() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void RunFolder::open(const std::string& folder, const Json& config, bool append, std::ostream& out,
                     const Console::Options& console) {
  config_ = config;
  samples_ = console.samples;
  make(folder, append);
  console_.emplace(out, console);
}

void RunFolder::make(const std::string& folder, bool append) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::error_code ignored;
  if (error && !file_exists(folder) && std::filesystem::is_symlink(folder, ignored)) {
    throw DataError(concat(folder, ": is a link to ", std::filesystem::read_symlink(folder).string(),
                           ", which does not exist; expected a folder, or nothing"));
  }
  require<DataError>(!error, folder, ": cannot be made: ", error.message(),
                     "; expected a folder above it that this user may write");
  lock(folder);
  lock_->name_holder();
  const std::string scalars = concat(folder, '/', kTensorBoard);
  require<DataError>(!append || !tensorboard_from_ || !std::filesystem::is_symlink(scalars), scalars,
                     ": is a link, expected a folder or nothing");
  if (append) {  // opens the log before any other change, because opening throws if the log is a link
    log_.emplace(folder + "/metrics.jsonl", append, samples_);
  }
  CheckpointStore(folder).recover();
  for (const char* name : {"config.json", kEvaluation}) {
    remove_cut_files(folder, name);
  }
  folder_ = folder;
  found_last_ = last_of(folder);
  write_config();
  if (!append) {
    log_.emplace(folder + "/metrics.jsonl", append, samples_);
  }
  if (resumed_ && !resumed_->from_another) {
    write_resumed();
  }
  if (tensorboard_from_) {
    if (!append) {  // deletes scalars of an earlier run, whose metrics are overwritten
      remove_tree(scalars);
    }
    tensorboard_.emplace(scalars, *tensorboard_from_, samples_);
  }
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void RunFolder::write_config() {
  Json::Object config = *config_.if_object();
  if (resumed_ && resumed_->from_another) {
    config[kRollsBack] = found_last_;
  }
  replace_text(folder_ + "/config.json", Json(config).text(2) + "\n");
}

void RunFolder::write_resumed() {
  const Resumed resumed = *std::exchange(resumed_, std::nullopt);
  if (!resumed.best_from.empty()) {
    CheckpointStore(folder_).copy(resumed.best_from, CheckpointStore::kBest);
  }
  write_event("resume", resumed.event);
  if (resumed.from_another) {
    write_config();
  }
}

std::string RunFolder::folder() {
  struct stat opened {};
  struct stat there {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &opened) != 0) {
    return folder_;
  }
  const auto is_the_folder = [&](const std::string& path) {
    return ::stat(path.c_str(), &there) == 0 && there.st_dev == opened.st_dev && there.st_ino == opened.st_ino;
  };
  if (is_the_folder(folder_)) {
    return folder_;
  }
  std::error_code error;
  const std::string now = std::filesystem::read_symlink(concat("/proc/self/fd/", descriptor_), error).string();
  if (!error && is_the_folder(now)) {
    console_->note(concat("warning: ", folder_, " was moved to ", now, " during the run, which goes on there"));
    folder_ = now;
    return folder_;
  }
  require<WriteError>(opened.st_nlink == 0 && !file_exists(folder_), folder_,
                      ": was replaced during the run, and cannot be found any more; expected it to stay in place");
  console_->note(concat("warning: ", folder_, " was deleted during the run and is made anew; earlier lines of its ",
                        "metrics.jsonl and the best checkpoint are lost"));
  ::close(std::exchange(descriptor_, -1));
  log_.reset();
  tensorboard_.reset();
  lock_.reset();
  make(folder_, false);
  return folder_;
}

RunOptions::Place RunFolder::place() {
  const std::string name = folder();
  const std::string path = concat("/proc/self/fd/", descriptor_);
  return {.name = name, .path = descriptor_ >= 0 && file_exists(path) ? path : name};
}

void RunFolder::warn_of_steps(double seconds, std::int64_t samples) {
  longest_step_s_ = seconds;
  step_samples_ = samples;
}

void RunFolder::note(const std::string& line) {
  if (console_) {
    console_->note(line);
  } else {
    std::cout << "  " << line << '\n' << std::flush;
  }
}

void RunFolder::on_non_finite(const NonFiniteEvent& event) {
  if (console_) {
    console_->note(concat("step ", event.step, " skipped: gradients are not finite: ", event.gradients));
    log_->write_event("non_finite", {{"step", event.step}, {"gradients", event.gradients}});
  }
}
void RunFolder::on_report(const ReportEvent& event) {
  if (console_) {
    const double seconds = static_cast<double>(step_samples_) / event.samples_per_second;
    if (longest_step_s_ > 0 && seconds > longest_step_s_) {
      console_->note(concat("warning: a step takes ", seconds, " s, longer than --stop-within ", longest_step_s_,
                            ": a stop is heard after a step"));
      longest_step_s_ = 0;
    }
  }
  tell(&RunObserver::on_report, event);
}
void RunFolder::on_checkpoint_end(const CheckpointEvent& /*event*/) {
  if (console_ && resumed_) {
    write_resumed();
  }
}
void RunFolder::write_event(const std::string& name, Json::Object fields) {
  if (log_) {
    log_->write_event(name, std::move(fields));
  }
}
void RunFolder::write_evaluation(const Json& evaluation) {
  if (!console_) {
    return;
  }
  const std::string text = evaluation.text() + "\n";
  const std::string before = folder();
  try {
    replace_text(concat(before, '/', kEvaluation), text);
  } catch (const WriteError&) {
    const std::string now = folder();
    if (now == before) {
      throw;
    }
    remove_cut_files(now, kEvaluation);  // deletes the unfinished file that the attempt above has left
    replace_text(concat(now, '/', kEvaluation), text);
  }
}
void RunFolder::on_end(int exit_code, const RunResult& result) {
  if (log_) {
    log_->on_end(exit_code, result);
  }
}

}  // namespace lockstep::nn
