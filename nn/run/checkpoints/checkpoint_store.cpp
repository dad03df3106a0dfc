#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <system_error>

#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEarlier = "last.";
constexpr std::string_view kOneOfBest = "best-";

/// Returns the number N if `name` is `begin` + N, optionally followed by ".tmp-..." or ".old-..."; otherwise no value.
std::optional<std::int64_t> number_of(std::string_view name, std::string_view begin) {
  if (!name.starts_with(begin)) {
    return std::nullopt;
  }
  name.remove_prefix(begin.size());
  const std::string_view digits = name.substr(0, name.find('.'));
  const std::string_view rest = name.substr(digits.size());
  const std::optional<std::int64_t> number = number_in<std::int64_t>(digits);
  const bool whole = number && *number >= 0 && std::to_string(*number) == digits;
  const bool ours = rest.empty() || rest.starts_with(".tmp-") || rest.starts_with(".old-");
  return whole && ours ? number : std::nullopt;
}

/// Returns, in ascending order, each number N for which `folder` has an entry `begin` + N, or such a name with
/// ".tmp-..." or ".old-..." from a killed process.
std::vector<std::int64_t> numbers_in(const std::string& folder, std::string_view begin) {
  std::set<std::int64_t> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto number = number_of(entry->path().filename().string(), begin)) {
      numbers.insert(*number);
    }
  }
  return {numbers.begin(), numbers.end()};
}

/// Returns `path` without slashes, "." or ".." at its end, because find_folder() does not accept these.
std::string plain(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  const fs::path name = fs::path(path).filename();
  std::error_code ignored;
  const fs::path whole = name == "." || name == ".." ? fs::weakly_canonical(path, ignored) : fs::path(path);
  return whole.string();
}

}  // namespace

std::string CheckpointStore::best_name(std::int64_t step) {
  return concat(kOneOfBest, step);
}

std::string CheckpointStore::path(std::string_view name) const {
  return concat(folder_, '/', name);
}

std::vector<std::int64_t> CheckpointStore::best_steps() const {
  return numbers_in(folder_, kOneOfBest);
}

std::vector<std::string> CheckpointStore::list() const {
  std::vector<std::string> names{kLast};
  for (const std::int64_t number : numbers_in(folder_, kEarlier)) {
    names.push_back(concat(kEarlier, number));
  }
  names.emplace_back(kBest);
  for (const std::int64_t step : best_steps()) {
    names.push_back(best_name(step));
  }
  std::erase_if(names, [this](const std::string& name) { return find_folder(path(name)).empty(); });
  return names;
}

std::optional<RunProgress> CheckpointStore::progress_of(std::string_view name) const {
  try {
    return read_checkpoint_state(path(name)).progress;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

std::string CheckpointStore::newest() const {
  const std::vector<std::string> found = list();
  std::string newest = found.empty() ? "" : path(found.front());
  std::int64_t highest = -1;
  for (std::size_t i = 0; i < found.size() && found.front() != kLast; ++i) {
    if (const std::int64_t step = step_if_valid(path(found[i])).value_or(-1); step > highest) {
      newest = path(found[i]);
      highest = step;
    }
  }
  return newest;
}

bool CheckpointStore::has(const std::string& checkpoint) const {
  const std::string found = checkpoint.empty() ? "" : find_folder(checkpoint);
  if (found.empty()) {
    return false;
  }
  std::error_code ignored;
  return fs::equivalent(fs::absolute(found, ignored).parent_path(), folder_, ignored) ||
         fs::equivalent(fs::canonical(found, ignored).parent_path(), folder_, ignored);
}

bool CheckpointStore::is_last(const std::string& checkpoint) const {
  std::error_code ignored;
  return !checkpoint.empty() && fs::equivalent(find_folder(checkpoint), find_folder(path(kLast)), ignored);
}

void CheckpointStore::copy(const std::string& from, std::string_view name) const {
  const std::string to = path(name);
  const std::string found = find_folder(from);
  require<FileError>(!found.empty() && !fs::is_symlink(found), from, ": is no folder, expected a checkpoint");
  std::vector<std::string> names = listed_files(found);
  require<FileError>(!names.empty(), found, ": has no ", kChecksumsFile,
                     " with the files to copy, expected a whole checkpoint");
  names.emplace_back(kChecksumsFile);
  AtomicFolder made(to);
  std::error_code error;
  fs::permissions(made.folder(), fs::status(found).permissions() | fs::perms::owner_all, error);
  require<FileError>(!error, to, ": its permissions cannot be set: ", error.message(),
                     "; expected a folder of this user");
  for (const std::string& listed : names) {
    const InputFile file(concat(found, '/', listed), InputFile::Links::refuse);
    OutputFile copy(made.file(listed), file.permissions());
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

void CheckpointStore::recover() const {
  recover_folder(path(kLast));
  recover_folder(path(kBest));
  for (const std::int64_t step : best_steps()) {
    recover_folder(path(best_name(step)));
  }
}

void CheckpointStore::remove() const {
  for (const std::int64_t step : best_steps()) {
    const std::string one = path(best_name(step));
    const std::optional<RunProgress> progress = progress_of(best_name(step));
    const bool damaged = is_checkpoint(one) || file_exists(concat(one, '/', kModelFile));  // false: a user's folder
    if (progress ? progress->position.step == step : damaged) {
      remove_folder(one);
    }
  }
  // A larger N is not a number of this run, but a date or step in the name of a user's copy.
  constexpr std::int64_t kMostKept = 9999;
  for (const std::int64_t number : numbers_in(folder_, kEarlier)) {
    if (number <= kMostKept) {
      remove_tree(path(concat(kEarlier, number)));
    }
  }
  remove_tree(path(kBest));
  remove_tree(path(kLast));
}

std::string meant_checkpoint(const std::string& path) {
  std::string meant = path.empty() ? "" : plain(path);
  if (meant.empty() || meant == "/" || find_folder(meant) != meant || is_checkpoint(meant)) {
    return meant;
  }
  const std::string newest = CheckpointStore(meant).newest();
  return newest.empty() ? meant : newest;
}

void naming_others(const std::string& source, const std::function<void()>& read) {
  try {
    read();
  } catch (const DataError& error) {
    if (step_if_valid(source)) {
      throw;
    }
    std::string others;
    const fs::path path(source);
    const CheckpointStore beside(path.parent_path().string());
    for (const std::string& name : beside.list()) {
      const auto step = path.filename() == name ? std::nullopt : step_if_valid(beside.path(name));
      if (step) {
        others += concat("; ", beside.path(name), " (step ", *step, ") can be read");
      }
    }
    if (others.empty()) {
      throw;
    }
    throw DataError(error.what() + others);
  }
}

}  // namespace lockstep::nn
