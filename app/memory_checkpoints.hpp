#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn {

/// Where copies lie unless a test says otherwise: memory that no process owns, so that it outlives the ranks.
inline constexpr const char* kCopiesRoot = "/dev/shm";

/// A job's folder of copies on this node, ROOT/lockstep-copies-UID-JOB, which nobody removes while this object or
/// another one of the job lives (flock on the folder).
class CopiesFolder {
 public:
  enum class Use : unsigned char {
    job,   ///< by the process that starts the ranks: made, and removed by the destructor
    start  ///< by a rank: the job's, or where it is not there, as on another node than that process's, PATH.away
  };
  /// FileError when it cannot be made, or is not this user's.
  CopiesFolder(const std::string& job, Use use, const std::string& root = kCopiesRoot);
  ~CopiesFolder();
  CopiesFolder(const CopiesFolder&) = delete;
  CopiesFolder& operator=(const CopiesFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void clear() noexcept;   ///< deletes what is in it
  void remove() noexcept;  ///< clear(), and the folder too where it is PATH.away

 private:
  [[nodiscard]] bool is_away() const;
  std::string path_;
  Use use_;
  int descriptor_ = -1;
};

/// Deletes folders of this user's jobs that nobody holds any more. One that a rank has made (PATH.away) is not held
/// between two starts, so it goes an hour after its last start or copy.
void remove_abandoned_copies(const std::string& root = kCopiesRoot);

/// The state of a run in memory, for the next start of a job that is started again (comm::RestartPolicy): checkpoints
/// in CopiesFolder::path()/last and, the one before, last.1. A kill during a copy leaves the older one. Rank 0 writes
/// them on its node; the lowest rank of the second node keeps what it is sent. So neither a rank nor a node is lost
/// with its copy, and other nodes hold none. All calls are collective over `control`, which must outlive this object.
class MemoryCheckpoints {
 public:
  struct Place {
    std::string job;  ///< comm::Attempt::job
    int node = 0;
    int local_rank = 0;
    std::string root = kCopiesRoot;
  };
  using Say = std::function<void(const std::string& line)>;

  /// say: called on rank 0, here and later, with what a user should know. What goes wrong ends copies, not the run.
  MemoryCheckpoints(comm::Communicator& control, const Place& place, Say say);

  /// False once something went wrong, or after settle(true). The same on all ranks.
  [[nodiscard]] bool on() const { return on_; }
  /// The folder of the newest copy on this node.
  [[nodiscard]] std::string newest() const;

  /// The step of the newest copy that is whole on some node, which then is there on all nodes, at newest(); none: there
  /// is no such copy. Copies whose checksums are wrong are deleted, and a line says so.
  [[nodiscard]] std::optional<std::int64_t> find();
  /// After the state was loaded: deletes copies that have served. last_start: there is no further start, so no copies
  /// are needed.
  void settle(bool last_start);
  /// Switches off where a node has no room for copies of so many bytes: for three, the one that is being written
  /// included, where it is to hold them; elsewhere for the one that a start reads; and 256 MiB, or a tenth of a small
  /// one, for others.
  void require_room(std::size_t bytes);
  /// A copy of the state as it is. Does nothing unless on().
  void save(Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  /// The run has ended in order: deletes all copies.
  void finish();

 private:
  [[nodiscard]] bool leads() const { return leads_; }
  [[nodiscard]] bool holds() const { return leads_ && node_ < 2; }
  [[nodiscard]] std::int64_t find_here(std::string& damage) const;
  /// False on all ranks when one has a problem, which is said behind `otherwise`.
  [[nodiscard]] bool all_fine(const std::string& problem, const char* otherwise);
  /// Switches off where that is so.
  void agree(const std::string& problem);
  /// The newest copy goes from one rank to another; called by these two. Returns what went wrong here.
  [[nodiscard]] std::string give(int to) const;
  [[nodiscard]] std::string take(int from) const;

  comm::Communicator& control_;
  Say say_;
  int node_;
  bool leads_;  ///< the lowest rank of this node
  bool on_ = true;
  int second_ = -1;  ///< the rank that leads the second node; -1: there is one node
  std::string path_;
  std::optional<CopiesFolder> folder_;  ///< of the rank that leads
};

}  // namespace lockstep::nn
