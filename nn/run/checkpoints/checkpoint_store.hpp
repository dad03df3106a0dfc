#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>

namespace lockstep::nn {

/// The checkpoints in one folder of results: last, the earlier last.1, last.2, ... (RunOptions::keep), best, and each
/// best-STEP (BestCheckpoints). The object holds only the folder's path, and every call reads the disk. Only rank 0
/// should call these functions; none is collective. write_checkpoint() writes the checkpoint NAME to path(NAME).
class CheckpointStore {
 public:
  static constexpr const char* kLast = "last";
  static constexpr const char* kBest = "best";
  [[nodiscard]] static std::string best_name(std::int64_t step);  ///< returns "best-STEP"

  explicit CheckpointStore(std::string folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::string path(std::string_view name) const;

  /// Returns the names of the checkpoints in the folder, in this order: last, each last.N, best, each best-STEP.
  [[nodiscard]] std::vector<std::string> list() const;
  /// Returns, in ascending order, each STEP for which there is a folder best-STEP. Temporary folders best-STEP.tmp-*
  /// and best-STEP.old-* of killed processes also count.
  [[nodiscard]] std::vector<std::int64_t> best_steps() const;
  /// Returns the progress in the state.json of checkpoint `name`, or no value if state.json cannot be read.
  [[nodiscard]] std::optional<RunProgress> progress_of(std::string_view name) const;
  /// Returns the path of the checkpoint from which a run continues. This is `last`, if it exists. Otherwise it is the
  /// readable checkpoint with the highest step, because a job killed at the end of its first epoch leaves only `best`
  /// or `best-STEP`. If no checkpoint is readable, returns the path of a damaged one, so that reading it reports the
  /// error. Returns an empty text if there is no checkpoint.
  [[nodiscard]] std::string newest() const;
  /// Returns true if the path `checkpoint` is in this folder, either as written or after symbolic links are resolved.
  [[nodiscard]] bool has(const std::string& checkpoint) const;
  /// Returns true if the path `checkpoint` leads to this folder's checkpoint `last`.
  [[nodiscard]] bool is_last(const std::string& checkpoint) const;

  /// Copies the checkpoint `from` to the name `name`: only the files that its checksums.json lists, with their
  /// permissions. If the process is killed, the copy is either complete and durable, or missing. Throws FileError, also
  /// if a file is a symbolic link.
  void copy(const std::string& from, std::string_view name) const;
  /// Restores checkpoints whose writer was killed while it replaced the folder, and deletes temporary folders of killed
  /// processes. Ignores last.N.
  void recover() const;
  /// Deletes all checkpoints of a run. Deletes `last` at the end, so that a killed call leaves `last` complete. Does
  /// not delete a user's copies: a folder best-STEP whose checkpoint has another step, and last.N with N above 9999.
  /// Throws FileError.
  void remove() const;

 private:
  std::string folder_;
};

/// Returns the path of a checkpoint for a path that the user gave. If `path` is the folder of a run, the result is the
/// run's CheckpointStore::newest(). A slash, "." or ".." at the end of `path` is resolved first.
[[nodiscard]] std::string meant_checkpoint(const std::string& path);

/// Calls read(), which reads the checkpoint `source`. If read() throws because `source` is damaged, the error text also
/// names the readable checkpoints in the same folder. Other errors, for example for a checkpoint of another model, stay
/// unchanged.
void naming_others(const std::string& source, const std::function<void()>& read);

}  // namespace lockstep::nn
