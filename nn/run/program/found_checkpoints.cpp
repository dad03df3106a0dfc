#include <lockstep/nn/run/program/found_checkpoints.hpp>

#include <filesystem>
#include <system_error>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/model/detail/checksums.hpp>
#include <lockstep/nn/run/best_checkpoints.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

std::string checkpoint_in(comm::Session& session, const std::string& path) {
  std::string meant = path;
  session.agree([&] {
    if (session.rank() == 0 && !path.empty() && find_folder(path) == path && !file_exists(path + "/state.json") &&
        !find_folder(path + "/last").empty()) {
      meant = path + "/last";
    }
  });
  return comm::broadcast_text(session.control(), meant);
}

std::vector<std::string> checkpoints_in(const std::string& out) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& name) {
    const std::string path = concat(out, '/', name);
    const bool there = !find_folder(path).empty();
    if (there) {
      found.push_back(path);
    }
    return there;
  };
  add("last");
  for (int number = 1; add(concat("last.", number)); ++number) {
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
  std::error_code ignored;
  return !checkpoint.empty() &&
         std::filesystem::equivalent(std::filesystem::path(find_folder(checkpoint)).parent_path(), out, ignored);
}

bool is_last_of(const std::string& checkpoint, const std::string& out) {
  std::error_code ignored;
  return !checkpoint.empty() &&
         std::filesystem::equivalent(find_folder(checkpoint), find_folder(out + "/last"), ignored);
}

std::optional<std::int64_t> step_of_sound(const std::string& folder) {
  try {
    const std::int64_t step = read_checkpoint_state(folder).progress.position.step;
    require_checksums(find_folder(folder));
    return step;
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
    const std::filesystem::path path(source);
    for (const std::string& other : checkpoints_in(path.parent_path().string())) {
      const bool same = path.filename() == std::filesystem::path(other).filename();
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

bool is_best_of(const std::string& folder, const RunProgress& progress) {
  try {
    const RunProgress there = read_checkpoint_state(folder).progress;
    return there.best_by == progress.best_by && there.best == progress.best;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace lockstep::nn
