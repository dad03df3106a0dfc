#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn {

/// Where copies lie unless a test says otherwise: memory that no process owns, so that copies outlive the ranks.
inline constexpr const char* kCopiesRoot = "/dev/shm";

/// A job's folder of copies on this node, ROOT/lockstep-copies-UID-JOB. Nobody removes the folder while this object or
/// another one of the job lives (flock on the folder).
class CopiesFolder {
 public:
  enum class Use : unsigned char {
    /// For the process that starts the ranks: makes the folder; the destructor removes it.
    job,
    /// For a rank: uses the job's folder. If that is not there, as on nodes without the starting process, uses
    /// PATH.away.
    start
  };
  /// FileError when the folder cannot be made, or belongs to another user.
  CopiesFolder(const std::string& job, Use use, const std::string& root = kCopiesRoot);
  ~CopiesFolder();
  CopiesFolder(const CopiesFolder&) = delete;
  CopiesFolder& operator=(const CopiesFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void clear() noexcept;   ///< deletes what is in the folder
  void remove() noexcept;  ///< clear(), and deletes the folder if it is PATH.away

 private:
  [[nodiscard]] bool is_away() const;
  std::string path_;
  Use use_;
  int descriptor_ = -1;
};

/// Deletes folders of this user's jobs that nobody holds any more. A folder that a rank has made (PATH.away) is not
/// held between two starts, so it is deleted only an hour after its last start or copy.
void remove_abandoned_copies(const std::string& root = kCopiesRoot);

/// The state of a run in memory, for the next start of a job that is started again (comm::RestartPolicy): checkpoints
/// in CopiesFolder::path()/last and, the one before, last.1. A kill during a copy leaves the older one. Rank 0 writes
/// copies on its node and sends them to the lowest rank of the second node, which keeps them. So the loss of a rank or
/// of a node does not lose its copy; other nodes hold none. All calls are collective over `control`, which must outlive
/// this object.
class MemoryCheckpoints {
 public:
  struct Place {
    std::string job;  ///< comm::Attempt::job
    int node = 0;
    int local_rank = 0;
    std::string root = kCopiesRoot;
  };
  using Say = std::function<void(const std::string& line)>;

  /// say: called on rank 0, here and later, with what a user should know. A failure ends the copies, not the run.
  MemoryCheckpoints(comm::Communicator& control, const Place& place, Say say);

  /// False after a failure, or after settle(true). The same on all ranks.
  [[nodiscard]] bool on() const { return on_; }
  /// Returns the folder of the newest copy on this node.
  [[nodiscard]] std::string newest() const;

  /// Finds the newest copy that is whole on some node, brings it to all nodes, at newest(), and returns its step; none:
  /// there is no such copy. Deletes copies whose checksums are wrong, and says so.
  [[nodiscard]] std::optional<std::int64_t> find();
  /// Call after the state was loaded: deletes copies that are not needed any more. last_start: no further start
  /// follows, so all copies go, and none are made.
  void settle(bool last_start);
  /// Ends the copies if a node lacks room for copies of `bytes` bytes: for three, including the one that is being
  /// written, on nodes that hold copies; on others for the one that a start reads. In addition 256 MiB must be free for
  /// others, or a tenth of a small file system.
  void require_room(std::size_t bytes);
  /// Copies the current state. Does nothing unless on().
  void save(Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  /// Call when the run has ended in order: deletes all copies.
  void finish();

 private:
  [[nodiscard]] bool leads() const { return leads_; }
  [[nodiscard]] bool holds() const { return leads_ && node_ < 2; }
  [[nodiscard]] std::int64_t find_here(std::string& damage) const;
  /// False on all ranks when one has a problem; rank 0 then says `otherwise` and the problem.
  [[nodiscard]] bool all_fine(const std::string& problem, const char* otherwise);
  /// Ends the copies if a rank has a problem.
  void agree(const std::string& problem);
  /// Send the newest copy to rank `to`, or receive it from rank `from`; only these two call. Return what went wrong
  /// here.
  [[nodiscard]] std::string give(int to) const;
  [[nodiscard]] std::string take(int from) const;

  comm::Communicator& control_;
  Say say_;
  int node_;
  bool leads_;  ///< true: the lowest rank of this node
  bool on_ = true;
  int second_ = -1;  ///< lowest rank of the second node; -1: there is one node
  std::string path_;
  std::optional<CopiesFolder> folder_;  ///< held by the lowest rank of the node
};

}  // namespace lockstep::nn
