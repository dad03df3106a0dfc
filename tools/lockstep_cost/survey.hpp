#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/cost_file.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "measure/samples.hpp"
#include "tools/lockstep_cost/limits.hpp"

namespace lockstep::tools {

struct SurveyOptions {
  double seconds = 60;                              ///< for everything, about
  std::int64_t max_bytes = std::int64_t{64} << 20;  ///< the largest size; the smallest is 8 bytes
  int threads = 1;                                  ///< of a rank, for copies
  Device device;                                    ///< of this rank
  bool shares_device = false;                       ///< with another rank: for tests, times mean nothing
  KnownLimit host_link{};                           ///< between that device and the host
  std::optional<Device> peer{};                     ///< a GPU to copy to from this rank's
  KnownLimit peer_link{};
  KnownLimit device_memory{};  ///< of that device, for a copy inside it
  std::string gpu_missing{};   ///< why the GPU half, or a part of it, is not there; empty where it is
};

/// What is under way, for a line to those who wait: rank 0's view.
struct Progress {
  int done = 0;  ///< paths
  int paths = 0;
  int round = 0;  ///< through the sizes of this one
  double seconds_left = 0;
  std::string what;  ///< "all-reduce, 64 KiB"
};

/// The GPU that a rank copies to: the one after `mine` among those that the ranks of its node were `given` (UUIDs, in
/// the order of the local ranks), by its index in `gpus`, what this rank sees. Nothing for a rank alone, and when it
/// does not see that GPU. Pure.
[[nodiscard]] std::optional<Device> peer_gpu(const std::vector<GpuInfo>& gpus, const std::string& mine,
                                             const std::vector<std::string>& given);

/// 8, 16, 32, ... up to max_bytes, and at most 24 of them: larger steps where there would be more. Ascending.
[[nodiscard]] std::vector<std::int64_t> survey_sizes(std::int64_t max_bytes);

/// Seconds that are left when `done` of `paths`, which get equal shares of `planned` seconds, are over after `elapsed`:
/// the rest as planned, or at the pace so far where that is slower. Pure.
[[nodiscard]] double seconds_left(int done, int paths, double elapsed, double planned);

/// One point of a file: percentiles only where every call was timed by itself, and often enough for them.
[[nodiscard]] comm::CostPoint cost_point(std::int64_t bytes, const measure::Samples& samples);

/// How uncertain the medians are, relatively, for FitOptions::noise: twice the standard error of a median (1.25 sigma /
/// sqrt(n), sigma from the quartiles as the tails are not normal), in the middle of all sizes, and 0.05 to 0.3.
[[nodiscard]] double noise_of(const std::vector<measure::Samples>& sizes);

/// Measures, checks and fits: copies (all ranks at once), all-reduce, and messages between every two ranks. Collective;
/// the result counts on rank 0. Every path gets an equal share of the time; sizes for which it does not last are left
/// out, and the file says so. Bad results are a StateError on every rank.
[[nodiscard]] comm::CostFile survey(comm::Session& session, const SurveyOptions& options,
                                    const std::function<void(const Progress&)>& progress);

}  // namespace lockstep::tools
