#pragma once

#include <cstdint>

/// Rules for the crop and flip of images, for host code and CUDA kernels. ops::augment uses them, and so does the code
/// of nn that shows augmented images on the host.
namespace lockstep::ops::placement {

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_AND_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_AND_DEVICE
#endif

/// The epoch in the random key of an alternating flip: the flip's draw belongs to the sample in all epochs.
inline constexpr std::int64_t kNoEpoch = -1;

/// Returns whether an alternating flip mirrors a sample: the sample's own bit, inverted in odd epochs.
LOCKSTEP_HOST_AND_DEVICE inline bool alternating(bool own, std::int64_t epoch) {
  return own != ((epoch & 1) == 1);
}

/// Returns the index in [0, extent) that index `at` shows when the image is reflected about its edge pixels. Requires
/// -extent < at < 2 extent - 1.
LOCKSTEP_HOST_AND_DEVICE inline std::int64_t reflected(std::int64_t at, std::int64_t extent) {
  return at < 0 ? -at : at < extent ? at : 2 * (extent - 1) - at;
}

#undef LOCKSTEP_HOST_AND_DEVICE

}  // namespace lockstep::ops::placement
