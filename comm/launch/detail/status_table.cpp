#include <lockstep/comm/launch/detail/status_table.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <functional>

#include <lockstep/comm/launch/detail/process_state.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::comm::detail {

namespace {

constexpr const char* kFolder = "/dev/shm";
constexpr std::int64_t kHour = 3600;

/// Names of the communicators, in the order of LoggedCommunicator.
constexpr std::array<const char*, 4> kCommunicators{"grad", "inline_ops", "control", "gpu"};

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return 1e-9 * static_cast<double>(end_ns - begin_ns);
}

/// Returns "has ended" or "is stopped" for process `pid` that started at `started`; nullptr if that process runs.
const char* process_text(std::int64_t pid, std::int64_t started) {
  const ProcessState now = state_of(pid);
  return now.started != started || now.state == 'X' || now.state == 'Z' ? "has ended"
         : now.state == 'T' || now.state == 't'                         ? "is stopped"
                                                                        : nullptr;
}

std::string prefix() {
  return concat("lockstep-", ::geteuid(), '-');
}

/// Removes this user's tables that are an hour old: their jobs were killed before all ranks had opened the table.
void remove_old_tables() {
  DIR* folder = ::opendir(kFolder);
  if (folder == nullptr) {
    return;
  }
  const std::string begin = prefix();
  while (const dirent* entry = ::readdir(folder)) {
    const std::string path = concat(kFolder, '/', entry->d_name);
    struct stat status {};
    if (std::string_view(entry->d_name).starts_with(begin) && ::lstat(path.c_str(), &status) == 0 &&
        std::time(nullptr) - status.st_mtime > kHour) {
      ::unlink(path.c_str());
    }
  }
  ::closedir(folder);
}

}  // namespace

/// Contents of the StatusTable's file. All bytes are zero before the ranks write.
struct StatusTable::Memory {
  struct Entry {
    std::atomic<std::int64_t> pid;  ///< process number of the rank; 0 before the rank has opened the table
    std::atomic<std::int64_t> rank;
    std::atomic<std::int64_t> started;
    std::atomic<std::int64_t> wrote_ns;
    Progress progress;
    std::array<FlightRecorder, kCommunicators.size()> logs;
  };
  std::atomic<std::int64_t> came;
  std::atomic<bool> told;
  std::atomic<bool> told_of_stall;
  std::atomic<std::int64_t> heartbeat_ns;  ///< time when a rank last sent the heartbeat of this node
  Entry first;  ///< entry of local rank 0; the entries of the other local ranks follow it in memory

  [[nodiscard]] Entry& entry(int local_rank) { return (&first)[local_rank]; }
  static std::size_t bytes(int ranks) { return sizeof(Memory) + static_cast<std::size_t>(ranks) * sizeof(Entry); }
};

std::optional<TablePlace> table_place(const Launch& launch, const Environment& environment) {
  if (launch.size <= 1 || launch.local_size.value_or(1) <= 1 || !launch.local_rank) {
    return std::nullopt;
  }
  TablePlace place{.job = {},
                   .rank = launch.rank,
                   .local_rank = *launch.local_rank,
                   .local_size = *launch.local_size,
                   .one_node = *launch.local_size == launch.size};
  if (*launch.local_rank < 0 || *launch.local_rank >= *launch.local_size) {
    return std::nullopt;
  }
  if (const std::string_view name = value_of(environment, "PMIX_NAMESPACE"); !name.empty()) {
    // Open MPI may give two jobs the same number. So the text also contains the addresses of the job's server, which
    // are unique.
    place.job = concat(name, ' ', value_of(environment, "PMIX_SERVER_URI21"), ' ',
                       value_of(environment, "PMIX_SERVER_URI4"), ' ', value_of(environment, "PMIX_SERVER_URI41"));
  } else if (launch.source == LaunchSource::slurm) {
    place.job = concat(value_of(environment, "SLURM_JOB_ID"), '.', value_of(environment, "SLURM_STEP_ID"));
  } else if (launch.source == LaunchSource::lightning) {  // ranks share no parent process, only an address
    place.job = concat(value_of(environment, "MASTER_ADDR"), ' ', value_of(environment, "MASTER_PORT"));
  } else {
    const pid_t parent = ::getppid();
    place.job = concat("child of ", parent, " of ", state_of(parent).started);
  }
  // torchrun's agent restarts ranks with the same parent, address and port, so the restart count is part of the text.
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    place.job += concat(' ', value_of(environment, name));
  }
  return place;
}

StatusTable::StatusTable(const TablePlace& place) : place_(place) {
  remove_old_tables();
  path_ = concat(kFolder, '/', prefix(), std::hash<std::string>()(place.job), '-', place.local_size);
  const auto checked = [&](bool ok, const char* what) {
    const int reason = errno;
    require<FileError>(ok, path_, ": cannot be ", what, ": ", std::strerror(reason),
                       "; expected a file of this user with room for it");
  };
  const std::size_t bytes = Memory::bytes(place.local_size);
  // The first rank makes the file. Any user can make a file of this name here, so another user's file is refused.
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int file = -1;
  for (int tries = 0; file < 0 && tries < 100; ++tries) {
    file = ::open(path_.c_str(), kFlags | O_CREAT | O_EXCL, 0600);
    if (file < 0 && errno == EEXIST) {
      file = ::open(path_.c_str(), kFlags);
    }
    if (file < 0 && errno != ENOENT) {  // ENOENT: the last rank has unlinked the file meanwhile, so try again
      break;
    }
  }
  checked(file >= 0, "opened");
  struct stat there {};
  if (::fstat(file, &there) != 0 || !S_ISREG(there.st_mode) || there.st_uid != ::geteuid() || there.st_nlink > 1) {
    ::close(file);
    throw FileError(concat(
        path_,
        ": belongs to another user, has another name or is no file; expected a file of this user alone, or nothing"));
  }
  // Allocates all blocks of the file now, so that a full file system gives an error here. Otherwise, the first use of
  // the memory would raise SIGBUS.
  const int size_error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  const bool sized = size_error == 0;
  void* memory = sized ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int reason = sized ? errno : size_error;
  ::close(file);
  errno = reason;
  checked(memory != MAP_FAILED, "mapped");
  memory_ = static_cast<Memory*>(memory);
  Memory::Entry& own = memory_->entry(place_.local_rank);
  own.rank = place_.rank;
  own.started = state_of(::getpid()).started;
  own.wrote_ns = Progress::now_ns();
  own.pid = ::getpid();
  if (++memory_->came == place_.local_size) {
    remove();
  }
}

StatusTable::~StatusTable() {
  ::munmap(memory_, Memory::bytes(place_.local_size));
}

void StatusTable::remove() noexcept {
  ::unlink(path_.c_str());
}

Progress& StatusTable::progress() noexcept {
  return memory_->entry(place_.local_rank).progress;
}

void StatusTable::alive() noexcept {
  memory_->entry(place_.local_rank).wrote_ns.store(Progress::now_ns(), std::memory_order_release);
}

bool StatusTable::first_to_tell() noexcept {
  return !memory_->told.exchange(true);
}

std::vector<std::string> StatusTable::silent(double seconds) const {
  std::vector<std::string> lines;
  const std::string on_host = concat(" (host ", host());
  for (int local = 0; local < place_.local_size; ++local) {
    const Memory::Entry& entry = memory_->entry(local);
    const std::int64_t pid = entry.pid;
    if (local == place_.local_rank) {
      continue;
    }
    if (pid == 0) {
      lines.push_back(
          concat("no word from ", place_.one_node ? "rank " : "local rank ", local, on_host, "): it has not begun"));
      continue;
    }
    const double age = seconds_between(entry.wrote_ns.load(std::memory_order_acquire), Progress::now_ns());
    if (age < seconds) {
      continue;
    }
    const char* state = process_text(pid, entry.started);
    const std::string doing = entry.progress.text();
    lines.push_back(concat("no word from rank ", entry.rank.load(), on_host, ", pid ", pid, ") for ", std::lround(age),
                           " s: the process ", state == nullptr ? "hangs" : state,
                           doing.empty() ? "" : concat("; it was ", doing)));
  }
  return lines;
}

bool StatusTable::first_of_stall() noexcept {
  return !memory_->told_of_stall.exchange(true);
}

void StatusTable::end_of_stall() noexcept {
  memory_->told_of_stall = false;
}

bool StatusTable::claims_heartbeat(double seconds) noexcept {
  std::int64_t last = memory_->heartbeat_ns.load();
  const std::int64_t now = Progress::now_ns();
  return (last == 0 || seconds_between(last, now) >= seconds) &&
         memory_->heartbeat_ns.compare_exchange_strong(last, now);
}

std::vector<std::string> StatusTable::table() const {
  constexpr double kLate = 2.5;  // seconds without a write that mean a hang; a live process writes every second
  std::vector<std::string> lines;
  for (int local = 0; local < place_.local_size; ++local) {
    const Memory::Entry& entry = memory_->entry(local);
    const std::int64_t pid = entry.pid;
    if (pid == 0) {
      lines.push_back(concat(place_.one_node ? "rank " : "local rank ", local, ": has not begun"));
      continue;
    }
    const std::int64_t now = Progress::now_ns();
    const double age = seconds_between(entry.wrote_ns.load(std::memory_order_acquire), now);
    const std::int64_t begun = entry.progress.begun_ns.load(std::memory_order_relaxed);
    const char* state = process_text(pid, entry.started);
    const std::string doing = entry.progress.text();
    const auto since = begun == 0 ? std::string() : concat(", for ", std::lround(seconds_between(begun, now)), " s");
    lines.push_back(concat("rank ", entry.rank.load(), ": ", doing.empty() ? "nothing has begun" : doing, since,
                           state != nullptr ? concat(", process ", state)
                           : age > kLate    ? std::string(", process hangs")
                                            : std::string()));
  }
  return lines;
}

std::string StatusTable::host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

FlightRecorder& StatusTable::log(LoggedCommunicator communicator) noexcept {
  return memory_->entry(place_.local_rank).logs[static_cast<std::size_t>(communicator)];
}

std::vector<RankLog> StatusTable::logs(std::size_t communicator) const {
  std::vector<RankLog> result;
  for (int local = 0; local < place_.local_size; ++local) {
    const Memory::Entry& entry = memory_->entry(local);
    if (entry.pid != 0) {
      result.push_back({static_cast<int>(entry.rank.load()), &entry.logs[communicator]});
    }
  }
  return result;
}

std::string StatusTable::first_difference() const {
  for (std::size_t i = 0; i < kCommunicators.size(); ++i) {
    if (std::string text = comm::first_difference(kCommunicators[i], logs(i)); !text.empty()) {
      return text;
    }
  }
  return {};
}

std::vector<std::string> StatusTable::behind() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < kCommunicators.size(); ++i) {
    if (std::string text = furthest_behind(kCommunicators[i], logs(i)); !text.empty()) {
      lines.push_back(std::move(text));
    }
  }
  return lines;
}

namespace {

Json json_of(const FlightRecorder& log, std::int64_t now) {
  const std::int64_t called = log.count();
  Json::Array last;
  for (std::int64_t number = std::max<std::int64_t>(1, called - FlightRecorder::kKept); number <= called; ++number) {
    if (const auto kept = log.at(number)) {
      last.emplace_back(Json::Object{{"number", number},
                                     {"operation", kept->operation.text()},
                                     {"seconds_ago", seconds_between(kept->operation.at_ns, now)}});
    }
  }
  return Json::Object{{"called", called}, {"last", std::move(last)}};
}

}  // namespace

Json StatusTable::operations() const {
  const std::int64_t now = Progress::now_ns();
  Json::Array ranks;
  for (int local = 0; local < place_.local_size; ++local) {
    const Memory::Entry& entry = memory_->entry(local);
    if (entry.pid == 0) {
      continue;
    }
    Json::Object communicators;
    for (std::size_t i = 0; i < kCommunicators.size(); ++i) {
      communicators[kCommunicators[i]] = json_of(entry.logs[i], now);
    }
    ranks.emplace_back(Json::Object{{"rank", entry.rank.load()},
                                    {"pid", entry.pid.load()},
                                    {"doing", entry.progress.text()},
                                    {"seconds_since_a_word", seconds_between(entry.wrote_ns, now)},
                                    {"communicators", std::move(communicators)}});
  }
  return Json::Object{{"host", host()}, {"ranks", std::move(ranks)}};
}

}  // namespace lockstep::comm::detail
