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
  double seconds = 60;                              ///< for the whole survey, about
  std::int64_t max_bytes = std::int64_t{64} << 20;  ///< the largest size; the smallest is 8 bytes
  int threads = 1;                                  ///< of a rank, for copies on the host
  Device device;                                    ///< of this rank
  bool shares_device = false;                       ///< with another rank: for tests, the times mean nothing
  KnownLimit host_link{};                           ///< between that device and the host
  std::optional<Device> peer{};                     ///< a GPU that this rank's GPU copies to
  KnownLimit peer_link{};
  KnownLimit device_memory{};  ///< of that device, for a copy inside it
  std::string gpu_missing{};   ///< why GPU paths, or some of them, are missing; else empty
};

/// What is being measured, for a progress line: rank 0's view.
struct Progress {
  int done = 0;  ///< paths that are done
  int paths = 0;
  int round = 0;  ///< which pass over the sizes of this path
  double seconds_left = 0;
  std::string what;  ///< "all-reduce, 64 KiB"
};

/// The GPU that a rank copies to. `given`: UUIDs of the GPUs of the node's ranks, in the order of the local ranks. The
/// result is the one after `mine`, by its index in `gpus`, the GPUs that this rank sees. Empty for a single rank, and
/// when this rank does not see that GPU. Pure.
[[nodiscard]] std::optional<Device> peer_gpu(const std::vector<GpuInfo>& gpus, const std::string& mine,
                                             const std::vector<std::string>& given);

/// 8, 16, 32, ... up to max_bytes, ascending; with larger steps where there would be more than 24.
[[nodiscard]] std::vector<std::int64_t> survey_sizes(std::int64_t max_bytes);

/// The seconds left after `elapsed`, when `done` of `paths` are finished and each path was to get an equal part of
/// `planned`: the rest as planned, or at the pace so far where that is slower. Pure.
[[nodiscard]] double seconds_left(int done, int paths, double elapsed, double planned);

/// One point of a file. It has percentiles only where every call was timed by itself and there are enough values.
[[nodiscard]] comm::CostPoint cost_point(std::int64_t bytes, const measure::Samples& samples);

/// The relative uncertainty of the medians, for comm::CostFitOptions::noise: twice the standard error of a median (1.25
/// sigma / sqrt(n), sigma from the quartiles, as the tails are not normal), the median over all sizes, between 0.05 and
/// 0.3.
[[nodiscard]] double noise_of(const std::vector<measure::Samples>& sizes);

/// Measures, checks and fits: copies (all ranks at once), all-reduce, and messages between every two ranks. Collective;
/// only rank 0's result counts. Every path gets an equal share of the time. Sizes for which the time does not suffice
/// are left out, and the file says so. Wrong results are a StateError on every rank.
[[nodiscard]] comm::CostFile survey(comm::Session& session, const SurveyOptions& options,
                                    const std::function<void(const Progress&)>& progress);

}  // namespace lockstep::tools
