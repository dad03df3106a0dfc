#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn {

/// Folder of the copies, except in tests. No process owns this memory, so copies outlive the ranks.
inline constexpr const char* kCopiesRoot = "/dev/shm";

/// A job's folder of copies on this node, ROOT/lockstep-copies-UID-JOB. A lock on the folder (flock) keeps others from
/// removing it while this object or another one of the job exists.
class CopiesFolder {
 public:
  enum class Use : unsigned char {
    /// For the process that starts the ranks. The constructor makes the folder, the destructor removes it.
    job,
    /// For a rank. Uses the job's folder, or makes PATH.away if there is no such folder, as on nodes without the
    /// starting process.
    start
  };
  /// FileError if the folder cannot be made, or if it belongs to another user.
  CopiesFolder(const std::string& job, Use use, const std::string& root = kCopiesRoot);
  ~CopiesFolder();
  CopiesFolder(const CopiesFolder&) = delete;
  CopiesFolder& operator=(const CopiesFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void clear() noexcept;   ///< deletes the folder's contents
  void remove() noexcept;  ///< calls clear(), and deletes the folder if it is PATH.away

 private:
  [[nodiscard]] bool is_away() const;
  std::string path_;
  Use use_;
  int descriptor_ = -1;
};

/// Deletes folders of this user's jobs that no process holds any more. Nobody holds a folder that a rank has made
/// (PATH.away) between two starts, so such a folder is deleted only an hour after its last start or copy.
void remove_abandoned_copies(const std::string& root = kCopiesRoot);

/// Keeps the state of a run in memory for the next start of a job (comm::RestartPolicy). The newest checkpoint is
/// CopiesFolder::path()/last, the one before it last.1. After a kill during a copy the older one is left. Rank 0 writes
/// copies on its node and sends them to the lowest rank of the second node, which keeps them. So the loss of a rank or
/// of a node does not lose the copy; other nodes hold none. All calls are collective over `control`, which must outlive
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

  /// `say` is called on rank 0, here and later, with lines for the user. A failure ends the copies, but not the run.
  MemoryCheckpoints(comm::Communicator& control, const Place& place, Say say);

  /// Returns false after a failure or after settle(true). The answer is the same on all ranks.
  [[nodiscard]] bool on() const { return on_; }
  /// Returns the folder of the newest copy on this node.
  [[nodiscard]] std::string newest() const;

  /// Finds the newest copy that is valid on some node, copies it to newest() on all nodes, and returns its step.
  /// Returns no value if there is no such copy. Deletes copies whose checksums are wrong, and tells the user.
  [[nodiscard]] std::optional<std::int64_t> find();
  /// Deletes copies that are not needed any more. Call it after the state was loaded. If last_start, no further start
  /// follows: all copies are deleted, and none are made.
  void settle(bool last_start);
  /// Ends the copies if a node lacks memory for copies of `bytes` bytes. A node that holds copies needs three, with the
  /// one that is being written. Another node needs one, which a start reads. In addition 256 MiB, or a tenth of a small
  /// file system, must be free for others.
  void require_room(std::size_t bytes);
  /// Copies the current state. Does nothing unless on().
  void save(Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  /// Deletes all copies. Call it after the run has ended without an error.
  void finish();

 private:
  [[nodiscard]] bool leads() const { return leads_; }
  [[nodiscard]] bool holds() const { return leads_ && node_ < 2; }
  [[nodiscard]] std::int64_t find_here(std::string& damage) const;
  /// Returns false on all ranks if one rank has a problem. Rank 0 then says `otherwise` and the problem.
  [[nodiscard]] bool all_fine(const std::string& problem, const char* otherwise);
  /// Ends the copies if a rank has a problem.
  void agree(const std::string& problem);
  /// Send the newest copy to rank `to`, and receive it from rank `from`. Only these two ranks call. Both return the
  /// text of this rank's error, or an empty text.
  [[nodiscard]] std::string give(int to) const;
  [[nodiscard]] std::string take(int from) const;

  comm::Communicator& control_;
  Say say_;
  int node_;
  bool leads_;  ///< true: this is the lowest rank of its node
  bool on_ = true;
  int second_ = -1;  ///< lowest rank of the second node; -1: there is one node
  std::string path_;
  std::optional<CopiesFolder> folder_;  ///< folder that the lowest rank of the node holds
};

}  // namespace lockstep::nn
