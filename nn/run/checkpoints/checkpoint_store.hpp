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
/// best-STEP (BestCheckpoints). The object holds only the folder's path; every call reads the disk. No call is
/// collective; rank 0 makes them. write_checkpoint() writes the checkpoint NAME to path(NAME).
class CheckpointStore {
 public:
  static constexpr const char* kLast = "last";
  static constexpr const char* kBest = "best";
  [[nodiscard]] static std::string best_name(std::int64_t step);  ///< returns "best-STEP"

  explicit CheckpointStore(std::string folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::string path(std::string_view name) const;

  /// Returns the names of the checkpoints in the folder, in the order last, each last.N, best, each best-STEP.
  [[nodiscard]] std::vector<std::string> list() const;
  /// Returns, in ascending order, each STEP for which there is a folder best-STEP, or a folder best-STEP.tmp-* or
  /// best-STEP.old-* that a killed writer left.
  [[nodiscard]] std::vector<std::int64_t> best_steps() const;
  /// Returns the progress in the state.json of checkpoint `name`; no value if that file cannot be read.
  [[nodiscard]] std::optional<RunProgress> progress_of(std::string_view name) const;
  /// Returns the path of the checkpoint from which a run continues: the checkpoint `last`, if it exists; otherwise the
  /// readable checkpoint with the highest step, because a job killed at the end of its first epoch leaves only `best`
  /// or `best-STEP`. If no checkpoint is readable, returns the path of a damaged checkpoint, and reading that
  /// checkpoint throws the error. Returns an empty text if there is no checkpoint.
  [[nodiscard]] std::string newest() const;
  /// Returns whether the path `checkpoint`, as written or with links resolved, lies in this folder. False for "".
  [[nodiscard]] bool has(const std::string& checkpoint) const;
  /// Returns whether the path `checkpoint` leads to this folder's checkpoint `last`. Returns false for "".
  [[nodiscard]] bool is_last(const std::string& checkpoint) const;

  /// Copies the files that a checkpoint's checksums.json lists, with their permissions, and no other files. Afterwards
  /// the checkpoint `name` is complete and durable, or not there at all. Throws FileError, also if a file is a link.
  void copy(const std::string& from, std::string_view name) const;
  /// Restores checkpoints whose writers were killed between two renames, and deletes everything else that killed
  /// writers left. Ignores last.N.
  void recover() const;
  /// Deletes all checkpoints of a run, at the end `last`, so that a kill leaves `last` whole. Does not delete a user's
  /// copies: best-STEP with a checkpoint of another step, and last.N with an N above 9999. Throws FileError.
  void remove() const;

 private:
  std::string folder_;
};

/// Returns the path of the checkpoint that `path` stands for. The folder of a run stands for its newest(). A slash, "."
/// or ".." at the end of `path` is resolved.
[[nodiscard]] std::string meant_checkpoint(const std::string& path);

/// Calls read(), which reads the checkpoint `source`. If `source` is damaged, the error also names the readable
/// checkpoints in the same folder. An error of another cause, such as another model's checkpoint, does not name them.
void naming_others(const std::string& source, const std::function<void()>& read);

}  // namespace lockstep::nn
