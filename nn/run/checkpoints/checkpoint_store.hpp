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

/// The checkpoints of one folder of results: last, the earlier last.1, last.2, ... that stay (RunOptions::keep), best,
/// and each best-STEP (BestCheckpoints). Holds only the folder's path: every call reads the disk. Local, for rank 0;
/// write_checkpoint() writes to path(NAME).
class CheckpointStore {
 public:
  static constexpr const char* kLast = "last";
  static constexpr const char* kBest = "best";
  [[nodiscard]] static std::string best_name(std::int64_t step);  ///< returns "best-STEP"

  explicit CheckpointStore(std::string folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::string path(std::string_view name) const;

  /// Returns the names of the checkpoints in the folder: last, each last.N, best, each best-STEP.
  [[nodiscard]] std::vector<std::string> list() const;
  /// Returns the steps of the folders best-STEP, and of what their killed writers have left, ascending.
  [[nodiscard]] std::vector<std::int64_t> best_steps() const;
  /// Returns the progress in state.json; none if there is no such checkpoint, or its state.json cannot be read.
  [[nodiscard]] std::optional<RunProgress> progress_of(std::string_view name) const;
  /// Returns the path of the checkpoint from which a run continues: last if it is there. Else the readable one with the
  /// highest step: a job that was killed at the end of its first epoch leaves only best-STEP or best. Else one that
  /// cannot be read, so that reading it throws the error; empty if there is none.
  [[nodiscard]] std::string newest() const;
  /// Returns whether `checkpoint` (or "") lies in this folder, by its name or by the target of its links.
  [[nodiscard]] bool has(const std::string& checkpoint) const;
  /// Returns whether `checkpoint` (or "") is this folder's last, whatever path leads there.
  [[nodiscard]] bool is_last(const std::string& checkpoint) const;

  /// Copies the files that a checkpoint's checksums.json lists, with their permissions, and no other files. Afterwards
  /// the checkpoint `name` is complete and durable, or is not there at all. FileError, also if a file is a link.
  void copy(const std::string& from, std::string_view name) const;
  /// Puts back what killed writers left between two renames, and deletes their other remains; not those of last.N.
  void recover() const;
  /// Deletes all checkpoints of a run, `last` at the end, so that a kill leaves `last` whole. A checkpoint of another
  /// step than its name says, and last.N with an N above 9999, are a user's copies and stay. FileError.
  void remove() const;

 private:
  std::string folder_;
};

/// Returns the checkpoint that a path means: the folder of a run stands for its newest(). A path that ends with a
/// slash, "." or ".." is respelled.
[[nodiscard]] std::string meant_checkpoint(const std::string& path);

/// Calls read(), which reads the checkpoint `source`. If `source` is damaged, the error also names the readable
/// checkpoints beside it. If `source` is, say, another model's, they would not help.
void naming_others(const std::string& source, const std::function<void()>& read);

}  // namespace lockstep::nn
