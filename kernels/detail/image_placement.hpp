#pragma once

#include <cstdint>

/// Rules by which images are placed, for the host and for CUDA kernels: ops::augment, and what nn shows on the host.
namespace lockstep::ops::placement {

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_AND_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_AND_DEVICE
#endif

/// The epoch in the key of the draw of an alternating flip, which belongs to the sample in all epochs.
inline constexpr std::int64_t kNoEpoch = -1;

/// Of an alternating flip: the sample's own bit, the other way round in odd epochs.
LOCKSTEP_HOST_AND_DEVICE inline bool alternating(bool own, std::int64_t epoch) {
  return own != ((epoch & 1) == 1);
}

/// The place in [0, extent) that `at` shows when the image is reflected about its edge pixels; -extent < at < 2 extent
/// - 1.
LOCKSTEP_HOST_AND_DEVICE inline std::int64_t reflected(std::int64_t at, std::int64_t extent) {
  return at < 0 ? -at : at < extent ? at : 2 * (extent - 1) - at;
}

#undef LOCKSTEP_HOST_AND_DEVICE

}  // namespace lockstep::ops::placement
