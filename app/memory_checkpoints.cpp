#include <lockstep/app/memory_checkpoints.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::nn {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAway = ".away";
constexpr std::time_t kAwayFor = 3600;  // seconds after which other jobs may delete an unused folder "*.away"
constexpr std::int64_t kPieceBytes = 16 << 20;

std::string user_prefix() {
  return concat("lockstep-copies-", ::geteuid(), '-');
}

/// Opens the folder `path`, holds a shared lock on it, and returns its descriptor. Returns -1 if there is no such
/// folder, or if another process has removed it meanwhile. Throws FileError if the folder belongs to another user.
int held(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) {
    const int reason = errno;
    require<FileError>(reason == ENOENT, path, ": cannot be opened: ", std::strerror(reason),
                       "; expected a folder of this user, or nothing");
    return -1;
  }
  struct stat opened {};
  struct stat there {};
  const bool mine = ::fstat(folder, &opened) == 0 && opened.st_uid == ::geteuid();
  while (mine && ::flock(folder, LOCK_SH) != 0 && errno == EINTR) {
  }
  const bool same = ::stat(path.c_str(), &there) == 0 && there.st_dev == opened.st_dev && there.st_ino == opened.st_ino;
  if (!mine || !same) {
    ::close(folder);
  }
  require<FileError>(mine, path, ": belongs to another user, expected a folder of this user, or nothing");
  return same ? folder : -1;
}

int made_and_held(const std::string& path) {
  for (;;) {
    const int made = ::mkdir(path.c_str(), 0700);
    const int reason = errno;
    require<FileError>(made == 0 || reason == EEXIST, path, ": cannot be made: ", std::strerror(reason),
                       "; expected a folder above it that this user may write");
    if (const int folder = held(path); folder >= 0) {
      return folder;
    }
  }
}

void delete_all(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

/// Returns name and size in bytes of each file in `folder`, in the order of names.
std::vector<std::pair<std::string, std::int64_t>> files_in(const std::string& folder) {
  std::vector<std::pair<std::string, std::int64_t>> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    files.emplace_back(entry->path().filename().string(), static_cast<std::int64_t>(entry->file_size(error)));
  }
  require<FileError>(!error, folder, ": cannot be read: ", error.message(),
                     "; expected a folder that this user may read");
  std::sort(files.begin(), files.end());
  return files;
}

template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span<T>(values), Shape{static_cast<std::int64_t>(values.size())}};
}

std::int64_t bytes_below(const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file(error)) {
      bytes += static_cast<std::int64_t>(entry->file_size(error));
    }
  }
  return bytes;
}

}  // namespace

CopiesFolder::CopiesFolder(const std::string& job, Use use, const std::string& root)
    : path_(concat(root, '/', user_prefix(), job)), use_(use) {
  if (use_ == Use::start) {
    descriptor_ = held(path_);
    path_ += descriptor_ < 0 ? kAway : "";
  }
  if (descriptor_ < 0) {
    descriptor_ = made_and_held(path_);
  }
  (void)::futimens(descriptor_, nullptr);  // sets the folder's time of last use, for remove_abandoned_copies()
}

CopiesFolder::~CopiesFolder() {
  if (use_ == Use::job) {
    delete_all(path_);
  }
  ::close(descriptor_);
}

bool CopiesFolder::is_away() const {
  return path_.ends_with(kAway);
}

void CopiesFolder::clear() noexcept {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  for (const fs::path& entry : entries) {
    fs::remove_all(entry, error);
  }
}

void CopiesFolder::remove() noexcept {
  clear();
  if (is_away()) {
    ::rmdir(path_.c_str());
  }
}

void remove_abandoned_copies(const std::string& root) {
  const std::string begin = user_prefix();
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with(begin)) {
      found.push_back(entry->path().string());
    }
  }
  for (const std::string& path : found) {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
      continue;
    }
    struct stat about {};
    const bool mine = ::fstat(folder, &about) == 0 && about.st_uid == ::geteuid();
    const bool old = !path.ends_with(kAway) || std::time(nullptr) - about.st_mtime >= kAwayFor;
    if (mine && old && ::flock(folder, LOCK_EX | LOCK_NB) == 0) {
      delete_all(path);
    }
    ::close(folder);
  }
}

MemoryCheckpoints::MemoryCheckpoints(comm::Communicator& control, const Place& place, Say say)
    : control_(control), say_(std::move(say)), node_(place.node), leads_(place.local_rank == 0) {
  std::string problem;
  if (leads()) {
    try {
      folder_.emplace(place.job, CopiesFolder::Use::start, place.root);
      remove_abandoned_copies(place.root);  // keeps this job's folder, because the lock on it is held now
    } catch (const FileError& error) {
      problem = error.what();
    }
  }
  const std::vector<double> led = comm::all_gather_value(control_, leads() ? node_ : -1);
  const std::vector<std::string> paths = comm::all_gather_text(control_, folder_ ? folder_->path() : "");
  for (std::size_t rank = 0; rank < led.size(); ++rank) {
    path_ = led[rank] == node_ ? paths[rank] : path_;
    second_ = led[rank] == 1 ? static_cast<int>(rank) : second_;
  }
  agree(problem);
}

std::string MemoryCheckpoints::newest() const {
  return path_ + "/last";
}

bool MemoryCheckpoints::all_fine(const std::string& problem, const char* otherwise) {
  const std::vector<std::string> problems = comm::all_gather_text(control_, problem);
  const auto found = std::find_if(problems.begin(), problems.end(), [](const std::string& p) { return !p.empty(); });
  if (found != problems.end() && control_.rank() == 0) {
    say_(concat(otherwise, ": rank ", found - problems.begin(), ": ", *found));
  }
  return found == problems.end();
}

void MemoryCheckpoints::agree(const std::string& problem) {
  on_ = all_fine(problem, "no more copies in memory") && on_;
}

std::int64_t MemoryCheckpoints::find_here(std::string& damage) const {
  for (const char* name : {"last", "last.1"}) {
    const std::string folder = concat(path_, '/', name);
    if (!file_exists(folder)) {
      continue;
    }
    try {
      require<DataError>(file_exists(concat(folder, '/', kChecksumsFile)), folder, ": has no ", kChecksumsFile,
                         ", expected a whole checkpoint");
      const std::int64_t step = valid_step(folder);
      if (folder != newest()) {
        std::error_code error;
        fs::rename(folder, newest(), error);
        require<FileError>(!error, newest(), ": cannot be put in place: ", error.message(),
                           "; expected a folder that this user may write");
      }
      return step;
    } catch (const DataError& error) {
      damage = error.what();
      delete_all(folder);
    }
  }
  return -1;
}

std::optional<std::int64_t> MemoryCheckpoints::find() {
  if (!on_) {
    return std::nullopt;
  }
  std::string damage;
  const std::int64_t here = leads() ? find_here(damage) : -1;
  const std::vector<double> steps = comm::all_gather_value(control_, static_cast<double>(here));
  const std::vector<std::string> damages = comm::all_gather_text(control_, damage);
  const std::vector<double> leading = comm::all_gather_value(control_, leads() ? 1 : 0);
  for (const std::string& text : damages) {
    if (!text.empty() && control_.rank() == 0) {
      say_("a copy in memory is left out: " + text);
    }
  }
  const auto best = std::max_element(steps.begin(), steps.end());
  if (*best < 0) {
    return std::nullopt;
  }
  const int owner = static_cast<int>(best - steps.begin());
  std::string problem;
  for (int rank = 0; rank < control_.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (leading[at] == 0 || steps[at] == *best) {
      continue;
    }
    const std::string failed = control_.rank() == owner ? give(rank) : control_.rank() == rank ? take(owner) : "";
    problem += failed;
  }
  const char* otherwise = "the copies in memory cannot be read";
  const bool sent = all_fine(problem, otherwise);  // waits on every rank until all copies are sent
  const bool seen = is_checkpoint(newest());
  const bool there = all_fine(seen ? "" : concat(newest(), ": is not there on this rank"), otherwise);
  return sent && there ? std::optional(static_cast<std::int64_t>(*best)) : std::nullopt;
}

void MemoryCheckpoints::settle(bool last_start) {
  if (folder_ && last_start) {
    folder_->remove();
  } else if (folder_ && !holds()) {
    folder_->clear();
  }
  on_ = on_ && !last_start;
}

void MemoryCheckpoints::require_room(std::size_t bytes) {
  const std::size_t copies = holds() ? 3 : 1;  // a node without copies of the state gets one at the next start
  constexpr std::size_t kBeside = 1 << 16;     // bytes of file headers and state.json
  constexpr std::size_t kLeft = 256 << 20;
  std::string problem;
  struct statvfs room {};
  if (folder_ && ::statvfs(path_.c_str(), &room) == 0) {
    // Old copies of the state count as free memory, because new copies replace them.
    const std::size_t there =
        static_cast<std::size_t>(room.f_bavail) * room.f_frsize + static_cast<std::size_t>(bytes_below(path_));
    // Leaves room in shared memory for MPI and NCCL. If shared memory were full, SIGBUS would kill their processes.
    const std::size_t left = std::min(kLeft, static_cast<std::size_t>(room.f_blocks) * room.f_frsize / 10);
    const std::size_t needed = copies * (bytes + kBeside) + left;
    if (there < needed) {
      problem = concat(path_, ": ", there, " bytes are free, expected ", needed, ": ", copies, " times a copy, and ",
                       left, " for others");
    }
  }
  agree(problem);
}

std::string MemoryCheckpoints::give(int to) const {
  Stream stream = Stream::host_inline();
  std::string problem;
  std::string list;
  std::vector<std::pair<std::string, std::int64_t>> files;
  try {
    files = files_in(newest());
  } catch (const DataError& error) {
    problem = error.what();
  }
  for (const auto& [name, size] : files) {
    list += concat(name, ' ', size, '\n');
  }
  std::vector<std::int64_t> length{static_cast<std::int64_t>(list.size())};
  std::vector<std::uint8_t> bytes(list.begin(), list.end());
  control_.send(stream, view_of(length), to);
  control_.send(stream, view_of(bytes), to);
  for (const auto& [name, size] : files) {
    for (std::int64_t done = 0; done < size; done += kPieceBytes) {
      bytes.assign(static_cast<std::size_t>(std::min(kPieceBytes, size - done)), 0);
      try {
        InputFile(concat(newest(), '/', name))
            .read(static_cast<std::uint64_t>(done), std::as_writable_bytes(std::span(bytes)));
      } catch (const DataError& error) {
        problem = error.what();  // not thrown: the receiver will find a wrong checksum
      }
      control_.send(stream, view_of(bytes), to);
    }
  }
  return problem;
}

std::string MemoryCheckpoints::take(int from) const {
  Stream stream = Stream::host_inline();
  std::string problem;
  const auto trying = [&](const std::function<void()>& write) {
    try {
      if (problem.empty()) {
        write();
      }
    } catch (const DataError& error) {
      problem = error.what();  // not thrown: the sender continues, so this rank must receive all its data
    }
  };
  std::vector<std::int64_t> length(1);
  control_.recv(stream, view_of(length), from);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(length[0]));
  control_.recv(stream, view_of(bytes), from);
  std::istringstream list(std::string(bytes.begin(), bytes.end()));
  std::optional<AtomicFolder> folder;
  trying([&] { folder.emplace(newest()); });
  std::string name;
  for (std::int64_t size = 0; list >> name >> size;) {
    std::optional<OutputFile> file;
    trying([&] { file.emplace(folder->file(name)); });
    for (std::int64_t done = 0; done < size; done += kPieceBytes) {
      bytes.resize(static_cast<std::size_t>(std::min(kPieceBytes, size - done)));
      control_.recv(stream, view_of(bytes), from);
      trying([&] { file->write(std::as_bytes(std::span(bytes))); });
    }
    trying([&] { file->finish(); });
  }
  trying([&] {
    require<DataError>(file_exists(folder->file(kChecksumsFile)), newest(),
                       ": was not sent by the other rank, expected a whole checkpoint");
    require_checksums(folder->folder());
    folder->commit(1);
  });
  return problem;
}

void MemoryCheckpoints::save(Trainer& trainer, const RunIdentity& identity, const RunProgress& progress) {
  if (!on_) {
    return;
  }
  std::string problem;
  try {
    save_checkpoint(newest(), trainer, control_, identity, progress, 1);
  } catch (const comm::CollectiveError<WriteError>& error) {  // all ranks catch this error
    agree(control_.rank() == 0 ? error.what() : "");
    return;
  }
  if (second_ < 0) {
    return;
  }
  trainer.doing("copying the state to another node after step");
  if (control_.rank() == 0) {
    problem = give(second_);
  } else if (control_.rank() == second_) {
    problem = take(0);
  }
  agree(problem);
}

void MemoryCheckpoints::finish() {
  if (folder_) {
    folder_->remove();
  }
}

}  // namespace lockstep::nn
