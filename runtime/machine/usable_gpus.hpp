#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

/// GPUs that nobody uses, found by trying them (docs/devices.md).
namespace lockstep {

/// GPUs, with the claims that keep other searches away from them while this object lives. Move-only.
struct UsableGpus {
  std::vector<GpuInfo> gpus{};     ///< in the order of their indices
  std::vector<GpuClaim> claims{};  ///< one per GPU
};

/// The first `count` usable GPUs, or all usable ones for -1 (at least one). A GPU is usable when no other search holds
/// a claim to it, a context can be made there (exclusive-process mode) and `min_free_bytes` (default:
/// not_occupied_bytes()) can be allocated in one piece.
///
/// Trying a GPU leaves nothing behind on it and changes nothing of the calling thread; a primary context that the
/// program already has there stays as it is. A machine runs one search at a time: a second one waits for the first, at
/// most `patience`. So when two programs start at once and both want 3 of 4 GPUs, one gets them.
///
/// UsageError for another count. DeviceError when fewer are usable (it says for each of the others why: its claim's
/// holder, the compute mode, or the bytes free), when this process sees too few GPUs or none, when the search of
/// another process does not end, and when the folder of claims cannot be used (gpu_claim.hpp). Thread-safe.
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes = std::nullopt);

/// Nine tenths of the card's memory. On a card that nobody uses, a display, the driver and our own context take some
/// hundred MB; a program that trains or computes takes more than the tenth that is left.
[[nodiscard]] std::size_t not_occupied_bytes(const GpuInfo& gpu);

/// Makes a context and allocates `min_free_bytes`, then frees both. Empty when that works, else the reason why not.
/// During the call a free GPU has that much less memory. CudaError when the driver answers with an error of another
/// kind.
[[nodiscard]] std::string probe_gpu(const GpuInfo& gpu, std::size_t min_free_bytes);

/// The inputs of find_usable_gpus(), so that tests can search among made-up GPUs.
struct GpuSearch {
  std::vector<GpuInfo> gpus;
  std::function<std::string(const GpuInfo&, std::size_t min_free_bytes)> probe = probe_gpu;
  std::string claim_folder = default_claim_folder();
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes,
                                          const GpuSearch& search);

}  // namespace lockstep
