#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/session.hpp>
#include <lockstep/nn/run/training_run.hpp>

/// Which checkpoints there are, and which of them can be read.
namespace lockstep::nn {

/// The checkpoint that a path means, as rank 0 finds it: the folder of a run stands for its newest_checkpoint(). A path
/// that ends with a slash, "." or ".." gets another spelling. Collective.
[[nodiscard]] std::string checkpoint_in(comm::Session& session, const std::string& path);

/// The checkpoints in the folder of results `out`: last, each last.N, best, each best-STEP; paths.
[[nodiscard]] std::vector<std::string> checkpoints_in(const std::string& out);

/// The checkpoint that --resume auto goes on from: last if it is there. Else the one of the highest step that can be
/// read: a job that was killed at the end of its first epoch leaves best-STEP or best alone. Else one that cannot be
/// read, for the error that says so; empty where there is none.
[[nodiscard]] std::string newest_checkpoint(const std::string& out);

/// `checkpoint` (or "") lies in the folder of results `out`, by its name or by where its links lead.
[[nodiscard]] bool lies_in(const std::string& checkpoint, const std::string& out);

/// `checkpoint` (or "") is out/last, whatever path leads there.
[[nodiscard]] bool is_last_of(const std::string& checkpoint, const std::string& out);

/// The step of a checkpoint whose files are those that were written; none where one is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_of_sound(const std::string& folder);

/// Reads a checkpoint. Where it is damaged, the error names those beside it that can be read; where it is only
/// another model's, say, they would not help.
void naming_others(const std::string& source, const std::function<void()>& read);

/// What becomes of out/best when a run goes on.
struct BestOfResumed {
  std::optional<double> value{};  ///< of the best evaluation so far; none: the next one is the best
  std::string copy_from{};        ///< becomes out/best; empty: that stays as it is
};
/// A checkpoint tells of a best one, which out/best may not be. Looks in order for
///
///   out/best               with that value
///   a best-STEP            of that value, up to the step of the checkpoint: it is copied
///   out/best, behind it    a run that was killed between best and last: its evaluation comes again, and decides again
///                          (not with `goes_back`: then out/best is of the run that is left behind)
///   out/best, before it    with a better value
///
/// and takes none else, where the best one was elsewhere or is deleted. by: resolved().
[[nodiscard]] BestOfResumed best_of_resumed(const std::string& out, const RunProgress& progress, const BestBy& by,
                                            bool goes_back);

/// Copies the files of a checkpoint that its checksums.json lists, with their permissions, and nothing else that lies
/// there. `to` is there whole, durable, or not at all. FileError, also where a file is a link.
void copy_checkpoint(const std::string& from, const std::string& to);

}  // namespace lockstep::nn
