#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

struct DropoutDesc {
  double rate = 0.1;  ///< fraction of the elements that become 0, in [0, 1)
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;  ///< a number that differs for each layer of a model
};

/// Dropout (Srivastava et al. 2014), scaled during training so that evaluation needs no scaling: y = kept ? x * (1 / (1
/// - rate)) : 0. The same call on dy gives dx: no mask is stored.
///
///   x, y:       (N, ...) contiguous, one shape and type; f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU
///   sample_ids: (N) i64, contiguous: position of the sample in its data set          epoch: i64 scalar
///
/// Element e of a sample, in row-major order, is kept if its random word is at least rate * 2^32. This word is number e
/// % 4 of the four words of
///   philox({e / 4, sample id}, random_key(seed, RandomUse::dropout, epoch, layer))
/// where e / 4 and the sample id take two words each. Hence the kept elements do not depend on the number of threads
/// and ranks, the position of the sample in the batch, or the device.
///
/// Any id and epoch are valid. rate has a resolution of 2^-32; with rate 0, y is x. Dropped elements are +0, even if x
/// is NaN. In f32 the bits of y are the same on every device. y may be x. No workspace. Throws UsageError for a rate
/// outside [0, 1).
void dropout(Context& context, const DropoutDesc& desc, const TensorView& sample_ids, const TensorView& epoch,
             const TensorView& x, const TensorView& y);

namespace backend {  // the functions that dropout.cpp calls after its checks
LOCKSTEP_BACKENDS(dropout);
/// Returns the threshold for `rate`: dropout drops an element if the element's random word is below the threshold.
[[nodiscard]] std::uint32_t dropout_threshold(double rate);
}  // namespace backend

}  // namespace lockstep::ops
