#include <lockstep/nn/data/images/auto_augment.hpp>

#include <cmath>
#include <cstdint>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

AutoAugment parse_auto_augment(const std::string& name) {
  require<UsageError>(name == "none" || name == "trivial" || name == "rand", "--auto-augment is '", name,
                      "', expected none, trivial or rand");
  return name == "trivial" ? AutoAugment::trivial : name == "rand" ? AutoAugment::rand : AutoAugment::none;
}

namespace images {
namespace {

constexpr int kRandOps = 2;
constexpr int kRandBin = 9;

/// Returns torch.linspace(0, end, 31)[bin] with torch's rounding: torch computes in float, from the end of the range
/// that is nearer to `bin`.
float spaced(double end, int bin) {
  const auto last = static_cast<float>(end);
  const float step = last / static_cast<float>(kMagnitudes - 1);
  return bin < kMagnitudes / 2 ? step * static_cast<float>(bin)
                               : last - step * static_cast<float>(kMagnitudes - 1 - bin);
}

/// Returns the number of upper bits that posterize keeps: 8 at bin 0, and 8 - `removed` at the last bin.
double bits_left(int removed, int bin) {
  return 8 - std::round(static_cast<double>(bin) * removed / (kMagnitudes - 1));
}

}  // namespace

bool has_sign(PictureOp op) {
  return op >= PictureOp::shear_x && op <= PictureOp::sharpness;
}

double magnitude_of(AutoAugment policy, PictureOp op, int bin, const Extent& size) {
  const bool wide = policy == AutoAugment::trivial;
  const auto moved = [&](std::int64_t pixels) { return wide ? 32.0 : 150.0 / 331.0 * static_cast<double>(pixels); };
  switch (op) {
    case PictureOp::shear_x:
    case PictureOp::shear_y:
      return static_cast<double>(spaced(wide ? 0.99 : 0.3, bin));
    case PictureOp::translate_x:
      return static_cast<double>(spaced(moved(size.width), bin));
    case PictureOp::translate_y:
      return static_cast<double>(spaced(moved(size.height), bin));
    case PictureOp::rotate:
      return static_cast<double>(spaced(wide ? 135 : 30, bin));
    case PictureOp::brightness:
    case PictureOp::color:
    case PictureOp::contrast:
    case PictureOp::sharpness:
      return static_cast<double>(spaced(wide ? 0.99 : 0.9, bin));
    case PictureOp::posterize:
      return bits_left(wide ? 6 : 4, bin);
    case PictureOp::solarize:
      return 255 - 8.5 * bin;
    case PictureOp::identity:
    case PictureOp::autocontrast:
    case PictureOp::equalize:
      break;
  }
  return 0;
}

std::vector<Chosen> choose(AutoAugment policy, const Extent& size, Random& random) {
  std::vector<Chosen> all(policy == AutoAugment::none ? 0 : policy == AutoAugment::rand ? kRandOps : 1);
  for (Chosen& one : all) {
    one.op = static_cast<PictureOp>(random.below(kPictureOps));
    const int bin = policy == AutoAugment::rand ? kRandBin : static_cast<int>(random.below(kMagnitudes));
    one.magnitude = magnitude_of(policy, one.op, bin, size);
    const bool negative = random.below(2) == 1;
    if (has_sign(one.op) && negative) {
      one.magnitude = -one.magnitude;
    }
  }
  return all;
}

}  // namespace images
}  // namespace lockstep::nn
