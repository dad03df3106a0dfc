#pragma once

#include <cstdint>

/// Rules for the crop and flip of images, for host code and CUDA kernels. ops::augment uses these rules, and so does
/// the code of nn that shows augmented images on the host.
namespace lockstep::ops::placement {

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_AND_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_AND_DEVICE
#endif

/// The value that stands for the epoch in the random key of an alternating flip. As it is constant, a sample's random
/// bit is the same in all epochs.
inline constexpr std::int64_t kNoEpoch = -1;

/// Returns true if an alternating flip mirrors a sample in this epoch. `own` is the sample's random bit: the result is
/// `own` in even epochs and the inverse of `own` in odd epochs.
LOCKSTEP_HOST_AND_DEVICE inline bool alternating(bool own, std::int64_t epoch) {
  return own != ((epoch & 1) == 1);
}

/// Returns the index in [0, extent) of the pixel that appears at index `at` if an image is reflected about its edge
/// pixels. Requires -extent < at < 2 extent - 1.
LOCKSTEP_HOST_AND_DEVICE inline std::int64_t reflected(std::int64_t at, std::int64_t extent) {
  return at < 0 ? -at : at < extent ? at : 2 * (extent - 1) - at;
}

#undef LOCKSTEP_HOST_AND_DEVICE

}  // namespace lockstep::ops::placement
