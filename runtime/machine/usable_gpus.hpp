#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

/// Finds unused GPUs by trying them (docs/devices.md).
namespace lockstep {

/// GPUs, with the claims that keep other searches away from them while this object lives. Move-only.
struct UsableGpus {
  std::vector<GpuInfo> gpus{};     ///< in the order of their indices
  std::vector<GpuClaim> claims{};  ///< one per GPU
};

/// Returns the first `count` usable GPUs, or all usable ones for -1 (at least one). A GPU is usable when no other
/// search holds a claim to it, a context can be made there (exclusive-process mode) and `min_free_bytes` (default:
/// not_occupied_bytes()) can be allocated in one piece.
///
/// Trying a GPU leaves nothing on it and does not change the calling thread; a primary context that the program already
/// has there stays. A machine runs one search at a time: a second search waits for the first, at most `patience`. So
/// when two programs start at once and both want 3 of 4 GPUs, one of them gets them.
///
/// UsageError for another count. DeviceError when fewer are usable (for each other GPU the text has the reason: its
/// claim's holder, the compute mode, or the bytes free), when this process sees too few GPUs or none, when another
/// process's search does not end, and when the folder of claims cannot be used (gpu_claim.hpp). Thread-safe.
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes = std::nullopt);

/// Returns nine tenths of the card's memory. On a card that nobody uses, a display, the driver and lockstep's own
/// context take some hundred MB; a program that trains or computes takes more than the tenth that remains.
[[nodiscard]] std::size_t not_occupied_bytes(const GpuInfo& gpu);

/// Makes a context and allocates `min_free_bytes`, then frees both. Returns an empty text on success, else the reason.
/// During the call a free GPU has that much less memory. CudaError when the driver returns another kind of error.
[[nodiscard]] std::string probe_gpu(const GpuInfo& gpu, std::size_t min_free_bytes);

/// Inputs of find_usable_gpus(), so that tests can search among made-up GPUs.
struct GpuSearch {
  std::vector<GpuInfo> gpus;
  std::function<std::string(const GpuInfo&, std::size_t min_free_bytes)> probe = probe_gpu;
  std::string claim_folder = default_claim_folder();
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes,
                                          const GpuSearch& search);

}  // namespace lockstep
