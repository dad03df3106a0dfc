#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

/// Finds unused GPUs by trying each GPU (docs/devices.md).
namespace lockstep {

/// Usable GPUs. As long as this object lives, its claims keep other calls of find_usable_gpus() from finding these
/// GPUs. Can only be moved.
struct UsableGpus {
  std::vector<GpuInfo> gpus{};     ///< GPUs in the order of their indices
  std::vector<GpuClaim> claims{};  ///< one claim for each GPU
};

/// Returns the first `count` usable GPUs; for -1, all usable GPUs (at least one). A usable GPU meets three conditions:
/// nobody else holds a claim to the GPU; a context can be made on the GPU, which exclusive-process mode may prevent;
/// `min_free_bytes` (default: not_occupied_bytes()) can be allocated in one piece.
///
/// Each GPU is tried by probe_gpu(). This call leaves nothing on the GPU and changes no state of the calling thread; a
/// primary context that the program already has on the GPU stays. Only one search at a time runs on a machine: a second
/// search waits for the first, at most GpuSearch::patience. Otherwise, if two programs started at once and both wanted
/// 3 of 4 GPUs, neither might get enough.
///
/// Throws UsageError for a `count` of 0 or below -1. Throws DeviceError in four cases: fewer GPUs are usable (the text
/// says for each GPU why it is not usable: the holder of its claim, the compute mode or the bytes free); this process
/// sees too few GPUs or none; another process's search does not end; the claim folder cannot be used (gpu_claim.hpp).
/// Thread-safe.
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes = std::nullopt);

/// Returns nine tenths of the card's memory. On a card that nobody uses, a display, the driver and lockstep's own
/// context take some hundred MB. A program that trains or computes takes more than the tenth that remains.
[[nodiscard]] std::size_t not_occupied_bytes(const GpuInfo& gpu);

/// Tries whether a GPU can be used: makes a context and allocates `min_free_bytes`, then destroys the context and frees
/// the memory. Returns an empty text if the GPU can be used. Otherwise returns the reason: no context can be made, or
/// too little memory is free. During the call, the GPU has `min_free_bytes` less free memory. Throws CudaError for any
/// other error of CUDA.
[[nodiscard]] std::string probe_gpu(const GpuInfo& gpu, std::size_t min_free_bytes);

/// Inputs of find_usable_gpus(). Tests pass made-up GPUs.
struct GpuSearch {
  std::vector<GpuInfo> gpus;
  std::function<std::string(const GpuInfo&, std::size_t min_free_bytes)> probe = probe_gpu;
  std::string claim_folder = default_claim_folder();
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};
[[nodiscard]] UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes,
                                          const GpuSearch& search);

}  // namespace lockstep
