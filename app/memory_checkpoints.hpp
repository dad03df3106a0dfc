#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn {

/// Folder for the copies of the training state that all jobs keep on this node. Files in /dev/shm are in memory and
/// outlive the ranks. Tests use another folder.
inline constexpr const char* kCopiesRoot = "/dev/shm";

/// A job's folder of copies on this node, ROOT/lockstep-copies-UID-JOB. A lock on the folder (flock) keeps other jobs
/// from removing it while this object, or another object for the same job, exists.
class CopiesFolder {
 public:
  enum class Use : unsigned char {
    /// The process that starts the ranks uses this value. The constructor makes the job's folder of copies, and the
    /// destructor removes the folder.
    job,
    /// A rank uses this value. The constructor takes the job's folder of copies if the folder exists. On nodes without
    /// the process that starts the ranks, the folder does not exist. There the constructor makes a folder whose name
    /// ends with ".away".
    start
  };
  /// Throws FileError if the folder cannot be made, or if it belongs to another user.
  CopiesFolder(const std::string& job, Use use, const std::string& root = kCopiesRoot);
  ~CopiesFolder();
  CopiesFolder(const CopiesFolder&) = delete;
  CopiesFolder& operator=(const CopiesFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void clear() noexcept;   ///< deletes the folder's contents
  void remove() noexcept;  ///< calls clear(), and deletes the folder if its name ends with ".away"

 private:
  [[nodiscard]] bool is_away() const;
  std::string path_;
  Use use_;
  int descriptor_ = -1;
};

/// Deletes this user's folders of copies (CopiesFolder) that no job uses any more: folders on which no process holds a
/// lock. A folder whose name ends with ".away" is locked only by ranks, and is unlocked between two starts of its job.
/// Such a folder is deleted only if, in addition, the last start or copy was at least an hour ago.
void remove_abandoned_copies(const std::string& root = kCopiesRoot);

/// Keeps the state of a run in memory for the next start of a job (comm::RestartPolicy). The newest checkpoint is
/// CopiesFolder::path()/last. If a process is killed during a copy, perhaps only the earlier copy remains, as last.1.
/// Rank 0 writes each copy on its node and sends it to the lowest rank of the second node. This rank stores the copy,
/// too, so the copy survives the loss of a rank or of a node. All other nodes hold no copies. All functions are
/// collective over `control`, which must outlive this object.
class MemoryCheckpoints {
 public:
  struct Place {
    std::string job;  ///< name of the job (comm::Attempt::job)
    int node = 0;
    int local_rank = 0;
    std::string root = kCopiesRoot;
  };
  using Say = std::function<void(const std::string& line)>;

  /// The functions call `say` on rank 0 with lines for the user. After a failure the run continues without copies.
  MemoryCheckpoints(comm::Communicator& control, const Place& place, Say say);

  /// Returns true if save() makes copies: false after a failure or after settle(true). All ranks get the same answer.
  [[nodiscard]] bool on() const { return on_; }
  /// Returns the path of the newest copy of the training state on this node.
  [[nodiscard]] std::string newest() const;

  /// Finds the newest valid copy of the training state on any node, sends this copy to newest() on all nodes, and
  /// returns its step. Returns no value if sending fails or no copy is valid. Deletes copies with wrong checksums, and
  /// prints a line about them.
  [[nodiscard]] std::optional<std::int64_t> find();
  /// Deletes copies of the training state that no start needs any more. Call settle() after the state was loaded. If
  /// `last_start` is true, the job will not be started again. Then settle() deletes all copies, and save() makes no
  /// more.
  void settle(bool last_start);
  /// Makes save() do nothing if a node lacks memory for copies of the training state. `bytes` is the size of one copy.
  /// A node that keeps copies needs memory for three copies, including the copy that is being written. Any other node
  /// needs memory for one copy, which it receives at the next start. In addition, 256 MiB, or a tenth of a small file
  /// system, must stay free for other programs.
  void require_room(std::size_t bytes);
  /// Writes a copy of the current state to newest(). Does nothing unless on().
  void save(Trainer& trainer, const RunIdentity& identity, const RunProgress& progress);
  /// Deletes all copies of the training state. Call finish() after the run has ended without an error.
  void finish();

 private:
  [[nodiscard]] bool leads() const { return leads_; }
  [[nodiscard]] bool holds() const { return leads_ && node_ < 2; }
  [[nodiscard]] std::int64_t find_here(std::string& damage) const;
  /// Returns true if `problem` is empty on all ranks. If not, rank 0 prints `otherwise` and the problem for the user.
  [[nodiscard]] bool all_fine(const std::string& problem, const char* otherwise);
  /// Makes save() do nothing from now on if the `problem` of any rank is not empty.
  void agree(const std::string& problem);
  /// give() sends the newest copy of the training state to rank `to`; take() receives a copy from rank `from`. Only the
  /// sender calls give(), and only the receiver calls take(). Both functions return the text of this rank's error, or
  /// an empty text.
  [[nodiscard]] std::string give(int to) const;
  [[nodiscard]] std::string take(int from) const;

  comm::Communicator& control_;
  Say say_;
  int node_;
  bool leads_;  ///< true: this is the lowest rank of its node
  bool on_ = true;
  int second_ = -1;  ///< lowest rank of the second node; -1 if there is one node
  std::string path_;
  std::optional<CopiesFolder> folder_;  ///< folder of this node; only the lowest rank has one
};

}  // namespace lockstep::nn
