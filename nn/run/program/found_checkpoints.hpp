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

/// The checkpoint that a path means, as rank 0 finds it: the folder of a run stands for its last/. Collective.
[[nodiscard]] std::string checkpoint_in(comm::Session& session, const std::string& path);

/// The checkpoints in the folder of results `out`: last, last.1 and so on, best, each best-STEP; paths.
[[nodiscard]] std::vector<std::string> checkpoints_in(const std::string& out);

/// The checkpoint that --resume auto goes on from: last if it is there. Else the one of the highest step that can be
/// read: a job that was killed at the end of its first epoch leaves best-STEP or best alone. Else one that cannot be
/// read, for the error that says so; empty where there is none.
[[nodiscard]] std::string newest_checkpoint(const std::string& out);

/// `checkpoint` (or "") lies in the folder of results `out`.
[[nodiscard]] bool lies_in(const std::string& checkpoint, const std::string& out);

/// `checkpoint` (or "") is out/last, whatever path leads there.
[[nodiscard]] bool is_last_of(const std::string& checkpoint, const std::string& out);

/// The step of a checkpoint whose files are those that were written; none where one is missing or damaged.
[[nodiscard]] std::optional<std::int64_t> step_of_sound(const std::string& folder);

/// Reads a checkpoint. Where it is damaged, the error names those beside it that can be read; where it is only
/// another model's, say, they would not help.
void naming_others(const std::string& source, const std::function<void()>& read);

/// Whether `folder` holds the best checkpoint that `progress` tells of.
[[nodiscard]] bool is_best_of(const std::string& folder, const RunProgress& progress);

}  // namespace lockstep::nn
