#include <lockstep/app/found_checkpoints.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/model/detail/checksums.hpp>
#include <lockstep/nn/run/best_checkpoints.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

namespace fs = std::filesystem;

/// The path as find_folder() takes it.
std::string plain(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  const fs::path name = fs::path(path).filename();
  std::error_code ignored;
  const fs::path whole = name == "." || name == ".." ? fs::weakly_canonical(path, ignored) : fs::path(path);
  return whole.string();
}

/// None where it cannot be read.
std::optional<RunProgress> progress_of(const std::string& folder) {
  try {
    return read_checkpoint_state(folder).progress;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string checkpoint_in(comm::Session& session, const std::string& path) {
  std::string meant = path;
  session.agree([&] {
    if (session.rank() == 0 && !path.empty()) {
      meant = plain(path);
      if (meant != "/" && find_folder(meant) == meant && !file_exists(meant + "/state.json")) {
        const std::string newest = newest_checkpoint(meant);
        meant = newest.empty() ? meant : newest;
      }
    }
  });
  return comm::broadcast_text(session.control(), meant);
}

std::vector<std::string> checkpoints_in(const std::string& out) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& name) {
    const std::string path = concat(out, '/', name);
    if (!find_folder(path).empty()) {
      found.push_back(path);
    }
  };
  add("last");
  for (const std::int64_t number : numbered_folders(out, "last.")) {
    add(concat("last.", number));
  }
  add("best");
  for (const std::int64_t step : BestCheckpoints::steps_in(out)) {
    add(BestCheckpoints::name(step));
  }
  return found;
}

std::string newest_checkpoint(const std::string& out) {
  const std::vector<std::string> found = checkpoints_in(out);
  if (found.empty() || found.front() == out + "/last") {
    return found.empty() ? "" : found.front();
  }
  std::string newest = found.front();
  std::int64_t highest = -1;
  for (const std::string& path : found) {
    if (const std::int64_t step = step_of_sound(path).value_or(-1); step > highest) {
      newest = path;
      highest = step;
    }
  }
  return newest;
}

bool lies_in(const std::string& checkpoint, const std::string& out) {
  const std::string folder = checkpoint.empty() ? "" : find_folder(checkpoint);
  if (folder.empty()) {
    return false;
  }
  std::error_code ignored;
  return fs::equivalent(fs::absolute(folder, ignored).parent_path(), out, ignored) ||
         fs::equivalent(fs::canonical(folder, ignored).parent_path(), out, ignored);
}

bool is_last_of(const std::string& checkpoint, const std::string& out) {
  std::error_code ignored;
  return !checkpoint.empty() && fs::equivalent(find_folder(checkpoint), find_folder(out + "/last"), ignored);
}

std::optional<std::int64_t> step_of_sound(const std::string& folder) {
  try {
    const std::int64_t step = read_checkpoint_state(folder).progress.position.step;
    const std::string found = find_folder(folder);
    require_checksums(found);
    const bool whole = file_exists(concat(found, '/', kModelFile)) && file_exists(concat(found, '/', kOptimizerFile));
    return whole ? std::optional(step) : std::nullopt;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

void naming_others(const std::string& source, const std::function<void()>& read) {
  try {
    read();
  } catch (const DataError& error) {
    if (step_of_sound(source)) {
      throw;
    }
    std::string others;
    const fs::path path(source);
    for (const std::string& other : checkpoints_in(path.parent_path().string())) {
      const bool same = path.filename() == fs::path(other).filename();
      if (const auto step = same ? std::nullopt : step_of_sound(other)) {
        others += concat("; ", other, " (step ", *step, ") can be read");
      }
    }
    if (others.empty()) {
      throw;
    }
    throw DataError(error.what() + others);
  }
}

BestOfResumed best_of_resumed(const std::string& out, const RunProgress& progress, const BestBy& by, bool goes_back) {
  if (!progress.best) {
    return {};
  }
  const auto same_kind = [&](const std::optional<RunProgress>& other) {
    return other && other->best_by == progress.best_by && other->best;
  };
  const std::optional<RunProgress> best = progress_of(out + "/best");
  if (same_kind(best) && best->best == progress.best && (!goes_back || best->position.step <= progress.position.step)) {
    return {.value = progress.best};
  }
  for (const std::int64_t step : BestCheckpoints::steps_in(out)) {
    const std::string path = concat(out, '/', BestCheckpoints::name(step));
    const std::optional<RunProgress> there = fs::is_symlink(path) ? std::nullopt : progress_of(path);
    if (same_kind(there) && there->since_best == 0 && there->best == progress.best && there->position.step == step &&
        step <= progress.position.step) {
      return {.value = progress.best, .copy_from = path};
    }
  }
  if (!same_kind(best)) {
    return {};
  }
  if (best->position.step > progress.position.step) {
    return {.value = goes_back ? std::nullopt : progress.best};
  }
  const bool better = by.lowest ? *best->best < *progress.best : *best->best > *progress.best;
  return {.value = better ? best->best : std::nullopt};
}

void copy_checkpoint(const std::string& from, const std::string& to) {
  const std::string found = find_folder(from);
  require<FileError>(!found.empty() && !fs::is_symlink(found), from, ": is no folder, expected a checkpoint");
  std::vector<std::string> names = listed_files(found);
  require<FileError>(!names.empty(), found, ": has no ", kChecksumsFile, " with the files to copy");
  names.emplace_back(kChecksumsFile);
  AtomicFolder made(to);
  std::error_code error;
  fs::permissions(made.folder(), fs::status(found).permissions() | fs::perms::owner_all, error);
  require<FileError>(!error, to, ": its permissions cannot be set: ", error.message());
  for (const std::string& name : names) {
    const InputFile file(concat(found, '/', name), InputFile::Links::refuse);
    OutputFile copy(made.file(name), file.permissions());
    std::vector<std::byte> part(std::size_t{1} << 20);
    for (std::uint64_t at = 0; at < file.size(); at += part.size()) {
      part.resize(std::min<std::uint64_t>(part.size(), file.size() - at));
      file.read(at, part);
      copy.write(part);
    }
    copy.finish();
  }
  made.commit();
}

}  // namespace lockstep::nn
