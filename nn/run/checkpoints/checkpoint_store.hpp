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
/// and each best-STEP (BestCheckpoints). Holds the folder's path alone: every call looks at the disk. Local, for rank
/// 0; write_checkpoint() writes to path(NAME).
class CheckpointStore {
 public:
  static constexpr const char* kLast = "last";
  static constexpr const char* kBest = "best";
  [[nodiscard]] static std::string best_name(std::int64_t step);  ///< "best-STEP"

  explicit CheckpointStore(std::string folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::string path(std::string_view name) const;

  /// Names of the checkpoints that are there: last, each last.N, best, each best-STEP.
  [[nodiscard]] std::vector<std::string> list() const;
  /// Steps of the folders best-STEP, and of what killed writers of them have left, ascending.
  [[nodiscard]] std::vector<std::int64_t> best_steps() const;
  /// None where there is no such checkpoint, or its state.json cannot be read.
  [[nodiscard]] std::optional<RunProgress> progress_of(std::string_view name) const;
  /// The path of the checkpoint that a run goes on from: last if it is there. Else the one of the highest step that can
  /// be read: a job that was killed at the end of its first epoch leaves best-STEP or best alone. Else one that cannot
  /// be read, for the error that says so; empty where there is none.
  [[nodiscard]] std::string newest() const;
  /// `checkpoint` (or "") lies in this folder, by its name or by where its links lead.
  [[nodiscard]] bool has(const std::string& checkpoint) const;
  /// `checkpoint` (or "") is this folder's last, whatever path leads there.
  [[nodiscard]] bool is_last(const std::string& checkpoint) const;

  /// Copies the files of a checkpoint that its checksums.json lists, with their permissions, and nothing else that lies
  /// there. The checkpoint `name` is there whole, durable, or not at all. FileError, also where a file is a link.
  void copy(const std::string& from, std::string_view name) const;
  /// Puts back what killed writers left between two renames, and deletes what else they left; not of last.N.
  void recover() const;
  /// Deletes all checkpoints of a run, last as the last one: a kill leaves it whole. A checkpoint of another step than
  /// its name says and last.N with an N above 9999 are somebody's copies, which stay. FileError.
  void remove() const;

 private:
  std::string folder_;
};

/// The checkpoint that a path means: the folder of a run stands for its newest(). A path that ends with a slash, "." or
/// ".." gets another spelling.
[[nodiscard]] std::string meant_checkpoint(const std::string& path);

/// Reads a checkpoint. Where it is damaged, the error names those beside it that can be read; where it is only
/// another model's, say, they would not help.
void naming_others(const std::string& source, const std::function<void()>& read);

}  // namespace lockstep::nn
