#include <lockstep/kernels/erase_and_mix.hpp>

#include <lockstep/kernels/detail/tables.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::string_view kOp = "erase_and_mix";
constexpr std::int64_t kMostPixels = (std::int64_t{1} << 31) - 1;

}  // namespace

void erase_and_mix(Context& context, const std::array<std::uint8_t, 3>& fill, const TensorView& images,
                   const TensorView& erasures, const TensorView& mixtures, const TensorView& out) {
  require_on(context.device(), kOp, {&images, &erasures, &mixtures, &out});
  require<ShapeError>(
      images.shape.rank() == 5 && (images.shape[1] == 1 || images.shape[1] == 2) && images.shape[4] == 3, kOp,
      ": images are ", images.shape, ", expected (N, 1, H, W, 3) or (N, 2, H, W, 3)");
  require<DTypeError>(images.dtype == DType::u8, kOp, ": images are ", images.dtype, ", expected u8");
  require<ShapeError>(images.is_contiguous(), kOp, ": images ", images.shape, " with strides ", images.strides,
                      " are not contiguous, expected a contiguous tensor");
  const std::int64_t samples = images.shape[0];
  const std::int64_t pictures = images.shape[1];
  require<ShapeError>(images.shape[2] * images.shape[3] <= kMostPixels, kOp, ": images are ", images.shape,
                      ", expected at most ", kMostPixels, " pixels a picture");
  require_table(kOp, {erasures, "erasures"}, Shape{samples, pictures, kErasureColumns});
  if (pictures == 2) {
    require_table(kOp, {mixtures, "mixtures"}, Shape{samples, kMixtureColumns});
  } else {
    require<ShapeError>(!mixtures.given(), kOp, ": mixtures are given with images ", images.shape,
                        ", expected none with one picture a sample");
  }
  require_tensor(kOp, {out, "out"}, DType::u8, Shape{samples, images.shape[2], images.shape[3], 3});
  if (pictures == 1) {
    require_same_or_apart(kOp, {out, "out"}, {images, "images"});
  } else {
    require_apart(kOp, {out, "out"}, {{images, "images"}});
  }
  require_apart_from_table(kOp, {out, "out"}, {erasures, "erasures"});
  require_apart_from_table(kOp, {out, "out"}, {mixtures, "mixtures"});
  dispatch(context, kOp, LOCKSTEP_BACKEND(erase_and_mix, fill, images, erasures, mixtures, out));
}

}  // namespace lockstep::ops
