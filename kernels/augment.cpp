#include <lockstep/kernels/augment.hpp>

#include <cmath>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::string_view kOp = "augment";
constexpr std::int64_t kMostPad = std::int64_t{1} << 30;  // keeps 2 * pad + 1 a valid bound of Random::below

void check_desc(const AugmentDesc& desc) {
  require<UsageError>(desc.pad >= 0 && desc.pad <= kMostPad, kOp, ": pad is ", desc.pad, ", expected 0 to ", kMostPad);
  for (std::size_t c = 0; c < 3; ++c) {
    require<UsageError>(std::isfinite(desc.mean[c]) && std::isfinite(desc.std[c]) && desc.std[c] > 0, kOp, ": channel ",
                        c, " has mean ", desc.mean[c], " and std ", desc.std[c],
                        ", expected finite numbers and std above 0");
  }
}

}  // namespace

void augment(Context& context, const AugmentDesc& desc, const TensorView& images, const TensorView& sample_ids,
             const TensorView& epoch, const TensorView& valid, const TensorView& out) {
  require_on(context.device(), kOp, {&images, &sample_ids, &epoch, &valid, &out});
  check_desc(desc);
  require<ShapeError>(images.shape.rank() == 4 && images.shape[3] == 3, kOp, ": images are ", images.shape,
                      ", expected (N, H, W, 3)");
  require<DTypeError>(images.dtype == DType::u8, kOp, ": images are ", images.dtype, ", expected u8");
  require<ShapeError>(sample_ids.shape == Shape{images.shape[0]}, kOp, ": sample_ids are ", sample_ids.shape,
                      ", images ", images.shape, ", expected one id per image");
  require<DTypeError>(sample_ids.dtype == DType::i64, kOp, ": sample_ids are ", sample_ids.dtype, ", expected i64");
  require_scalar(kOp, {epoch, "epoch"}, DType::i64);
  require_scalar_if_given(kOp, {valid, "valid"}, DType::i64);
  require<ShapeError>(out.shape.rank() == 4 && out.shape[0] == images.shape[0] && out.shape[1] == images.shape[1] &&
                          out.shape[2] == images.shape[2] && (out.shape[3] == 3 || out.shape[3] == 4),
                      kOp, ": out is ", out.shape, ", images are ", images.shape,
                      ", expected (N, H, W, 3) or (N, H, W, 4)");
  require_compute_dtype(kOp, "out", out);
  require<UsageError>(!desc.reflect || desc.pad == 0 || images.shape.numel() == 0 ||
                          (desc.pad < images.shape[1] && desc.pad < images.shape[2]),
                      kOp, ": pad is ", desc.pad, " and reflects, images are ", images.shape,
                      ", expected a pad below both sides of an image");
  for (const TensorView* view : {&images, &sample_ids, &out}) {
    require<ShapeError>(view->is_contiguous(), kOp, ": a tensor ", view->shape, " with strides ", view->strides,
                        ", expected contiguous tensors");
  }
  for (const TensorView* in : {&images, &sample_ids, &epoch, &valid}) {
    require<ShapeError>(!in->given() || !overlaps(out, *in), kOp,
                        ": out overlaps an input, expected memory of its own for each");
  }
  dispatch(context, kOp, LOCKSTEP_BACKEND(augment, desc, images, sample_ids, epoch, valid, out));
}

}  // namespace lockstep::ops
