#include <lockstep/kernels/detail/known_bad.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>

namespace lockstep::ops {
namespace {

/// Returns true if on at least one axis the stride is longer than length(axis).
template <class Length>
bool strides_beyond(const ConvDesc& d, Length length) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.spatial_rank); ++i) {
    if (d.stride[i] > length(i)) {
      return true;
    }
  }
  return false;
}

/// Returns true if `call` has this fault: if a stride is above 1, pixels are copied to scratch memory, which is
/// allocated for the actual number of channels. But the copy addresses whole blocks of 8 (AVX2) or 16 channels, and
/// overwrites another thread's copy or the memory after the scratch memory.
bool copies_beyond_scratchpad(const LibraryCall& call) {
  const bool one_tap = call.implementation.starts_with("jit_1x1:") || call.implementation.starts_with("jit_bf16_1x1:");
  const std::int64_t block = call.implementation.find("avx512") != std::string_view::npos ? 16 : 8;
  return call.pass == ConvPass::backward_weights && one_tap && call.desc.in_channels < block &&
         strides_beyond(call.desc, [](std::size_t) { return 1; });
}

/// Returns true if `call` has this fault: the buffer of input pixels is allocated for a stride up to the length of the
/// kernel. With a longer stride, sums overwrite pixels.
bool books_too_few_pixels(const LibraryCall& call) {
  const bool blocked = call.implementation.starts_with("brgconv:") || call.implementation.starts_with("brg_conv_fwd:");
  return call.pass == ConvPass::forward && blocked && call.implementation.find("amx") != std::string_view::npos &&
         strides_beyond(call.desc, [&](std::size_t i) { return call.desc.kernel[i]; });
}

/// Returns true if `call` has this fault: if the code takes 30 pixels at a time and sums over an odd number of
/// channels, one register holds both the weights and a pixel.
bool overwrites_weights(const LibraryCall& call) {
  const ConvDesc& d = call.desc;
  const std::int64_t summed = (call.pass == ConvPass::forward ? d.in_channels : d.out_channels) / d.groups;
  return call.pass != ConvPass::backward_weights && call.implementation.starts_with("jit_bf16_1x1:") && summed % 2 != 0;
}

/// Returns true if `call` has this fault: sums over channels-last images read scratch memory of which a part was never
/// written. The fault occurs with a dilation above 1, with an image that is shorter than the kernel, or with a stride
/// that is longer than the kernel.
bool reads_unwritten_pixels(const LibraryCall& call) {
  const ConvDesc& d = call.desc;
  bool any = strides_beyond(d, [&](std::size_t i) { return d.kernel[i]; });
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.spatial_rank); ++i) {
    any = any || d.dilation[i] > 1 || d.in_size[i] < d.kernel[i];
  }
  return any && call.pass == ConvPass::backward_weights && call.implementation.starts_with("jit_bf16:");
}

/// Returns true if `call` has this fault with three spatial axes: the code mixes up the planes of two windows. One
/// window begins before a short image, by a distance that is no multiple of the stride. The other window ends after the
/// image.
bool mixes_up_planes(const LibraryCall& call) {
  const ConvDesc& d = call.desc;
  return d.spatial_rank == 3 && d.stride[0] > 1 && d.pad_before[0] % d.stride[0] != 0 &&
         d.in_size[0] < 2 * d.kernel[0] && call.pass == ConvPass::backward_weights &&
         (call.implementation.starts_with("jit_bf16:") || call.implementation.starts_with("jit:avx512"));
}

/// Returns true if `call` has this fault with three spatial axes: if the image is shorter than the kernel, a thread
/// writes sums after the end of the scratch memory.
bool writes_behind_scratchpad(const LibraryCall& call) {
  const ConvDesc& d = call.desc;
  const bool shorter = d.in_size[0] < d.kernel[0] || d.in_size[1] < d.kernel[1] || d.in_size[2] < d.kernel[2];
  return shorter && d.spatial_rank == 3 && call.pass == ConvPass::backward_weights &&
         call.implementation.starts_with("jit:avx512");
}

constexpr KnownBad kKnown[] = {
    {"onednn", "2.0.0", "", copies_beyond_scratchpad,
     "writes outside its scratch memory, https://github.com/uxlfoundation/oneDNN/issues/6035"},
    {"onednn", "2.2.0", "3.13.0", books_too_few_pixels,
     "gives wrong sums, https://github.com/uxlfoundation/oneDNN/pull/5494"},
    {"onednn", "2.0.0", "", overwrites_weights,
     "gives wrong sums over an odd number of channels, tests/kernels/conv2d_test.cpp"},
    {"onednn", "2.0.0", "", reads_unwritten_pixels, "gives wrong sums, tests/kernels/library_sweep.cpp"},
    {"onednn", "2.0.0", "", mixes_up_planes, "gives wrong sums, tests/kernels/library_sweep.cpp"},
    {"onednn", "2.0.0", "", writes_behind_scratchpad,
     "writes outside its scratch memory, tests/kernels/library_sweep.cpp"},
};

/// Returns the three parts of a version such as "3.1.1" as numbers; a missing part is 0.
std::array<int, 3> parts(std::string_view version) {
  std::array<int, 3> all{};
  const char* at = version.data();
  const char* const end = at + version.size();
  for (int& part : all) {
    at = std::from_chars(at, end, part).ptr;
    at += at != end && *at == '.' ? 1 : 0;
  }
  return all;
}

}  // namespace

const KnownBad* known_bad(const LibraryCall& call) {
  const auto* const found = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const KnownBad& bad) {
    return bad.library == call.library && parts(call.version) >= parts(bad.first) &&
           (bad.mended.empty() || parts(call.version) < parts(bad.mended)) && bad.concerns(call);
  });
  return found == std::end(kKnown) ? nullptr : found;
}

}  // namespace lockstep::ops
