#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "measure/samples.hpp"
#include "tools/lockstep_cost/limits.hpp"

namespace lockstep::tools {

struct SurveyOptions {
  double seconds = 60;                              ///< approximate time of the whole survey
  std::int64_t max_bytes = std::int64_t{64} << 20;  ///< largest size of a copy or message; the smallest size is 8 bytes
  int threads = 1;                                  ///< threads of a rank for copies on the host
  Device device;                                    ///< device of this rank
  bool shares_device = false;    ///< true: another rank uses `device`, too (only in tests: times mean nothing)
  KnownLimit host_link{};        ///< limit between `device` and the host
  std::optional<Device> peer{};  ///< GPU to which this rank's GPU copies
  KnownLimit peer_link{};
  KnownLimit device_memory{};  ///< limit of a copy inside the memory of `device`
  std::string gpu_missing{};   ///< reason why GPU paths are missing; empty if no path is missing
};

/// The state of the survey for a progress line, as rank 0 sees it.
struct Progress {
  int done = 0;  ///< number of paths that are measured completely
  int paths = 0;
  int round = 0;  ///< number of the present pass over the path's sizes, from 0
  double seconds_left = 0;
  std::string what;  ///< path and size that are measured: "all-reduce, 64 KiB"
};

/// Returns the GPU to which this rank copies: the GPU after `mine` in `given`. `mine` is the UUID of this rank's GPU.
/// `given` has the UUIDs of the GPUs on which the node's ranks compute, in the order of the local ranks. `gpus` are the
/// GPUs that this rank sees; the result is an index in `gpus`. The result is empty if `given` has a single GPU, or if
/// this rank does not see the next GPU. Pure.
[[nodiscard]] std::optional<Device> peer_gpu(const std::vector<GpuInfo>& gpus, const std::string& mine,
                                             const std::vector<std::string>& given);

/// Returns the sizes 8, 16, 32, ... up to max_bytes, ascending. Takes larger steps if there would be more than 24
/// sizes.
[[nodiscard]] std::vector<std::int64_t> survey_sizes(std::int64_t max_bytes);

/// Estimates the seconds left after `elapsed` seconds, when `done` of `paths` paths are finished: `paths` times the
/// time of a path, minus `elapsed`. The time of a path is its share, `planned` / `paths`, or `elapsed` / (done + 1) if
/// this is longer, because one more path is under way. Before the first path is finished, only the share counts. The
/// result is at least a quarter of a share, or 0 after the last path. Pure.
[[nodiscard]] double seconds_left(int done, int paths, double elapsed, double planned);

/// Makes the point of a cost file for `bytes` from `samples`. The point has percentiles only if every call was timed by
/// itself and there are enough samples.
[[nodiscard]] comm::CostPoint cost_point(std::int64_t bytes, const measure::Samples& samples);

/// Returns the relative uncertainty of the medians, for comm::CostFitOptions::noise: twice the standard error of a
/// median (1.25 sigma / sqrt(n), sigma from the quartiles, as the tails are not normal). Takes the median over all
/// sizes, limited to 0.05 to 0.3.
[[nodiscard]] double noise_of(const std::vector<measure::Samples>& sizes);

/// Measures, checks and fits copies (all ranks at once), all-reduces, and messages between every two ranks. Collective;
/// only rank 0's result counts. Every path gets an equal share of the time. Sizes for which the time does not suffice
/// are left out, and the file says so. A wrong result is a StateError on every rank.
[[nodiscard]] comm::CostFile survey(comm::Session& session, const SurveyOptions& options,
                                    const std::function<void(const Progress&)>& progress);

}  // namespace lockstep::tools
