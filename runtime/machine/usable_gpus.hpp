#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

/// GPUs that nobody uses, found by trying them out (docs/devices.md).
namespace lockstep {

/// GPUs and the claims that keep other searches away from them, until this object ends. Move-only.
struct UsableGpus {
  std::vector<GpuInfo> gpus{};     ///< in the order of their indices
  std::vector<GpuClaim> claims{};  ///< one each
};

/// `count` GPUs, the first ones that are usable; -1: all that are, at least one. A GPU is usable when no other search
/// holds a claim to it, a context can be made there (exclusive-process mode) and `min_free_bytes` can be allocated in
/// one piece. Without a number that is not_occupied_bytes().
///
/// Trying a GPU leaves nothing behind on it, neither on those that are taken, and nothing of the calling thread
/// changes; a primary context that the program has there is used and left as it was. One search at a time runs on a
/// machine: a second one waits for it, at most `patience`. So of two programs that start at once and want 3 of 4 GPUs
/// one gets them.
///
/// UsageError for another count. DeviceError when fewer are usable: it names each one that is not and why (who claims
/// it, the compute mode, bytes free); when this process sees no GPU, or not as many; when the search of another process
/// does not end; when the folder of claims cannot be used (gpu_claim.hpp). Thread-safe.
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes = std::nullopt);

/// Nine tenths of the card's memory. What is missing on a card where nobody works is a display, the driver and our own
/// context, some hundred MB; a program that trains or computes holds more than the rest.
[[nodiscard]] std::size_t not_occupied_bytes(const GpuInfo& gpu);

/// Makes a context and allocates `min_free_bytes`, then gives both back. Empty when that works; else why not. For a
/// moment a GPU that is free has that much less memory. CudaError when the driver answers with an error of another
/// kind.
[[nodiscard]] std::string probe_gpu(const GpuInfo& gpu, std::size_t min_free_bytes);

/// What find_usable_gpus() works with, so that a search runs on GPUs that do not exist.
struct GpuSearch {
  std::vector<GpuInfo> gpus;
  std::function<std::string(const GpuInfo&, std::size_t min_free_bytes)> probe = probe_gpu;
  std::string claim_folder = default_claim_folder();
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes,
                                          const GpuSearch& search);

}  // namespace lockstep
