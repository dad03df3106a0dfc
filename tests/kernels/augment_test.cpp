#include "tests/kernels/augment_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <lockstep/runtime/base/random.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::AugmentDesc;

struct Draw {
  std::int64_t row = 0;  ///< 0 .. 2 * pad
  std::int64_t column = 0;
  bool flip = false;
};

Draw draw(const AugmentDesc& desc, std::int64_t epoch, std::int64_t id) {
  Random random(desc.seed, RandomUse::augment, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(id));
  Draw result;
  if (desc.pad > 0) {
    result.row = random.below(static_cast<std::uint32_t>(2 * desc.pad + 1));
    result.column = random.below(static_cast<std::uint32_t>(2 * desc.pad + 1));
  }
  if (desc.flip && !desc.alternate) {
    result.flip = random.below(2) == 1;
  }
  if (desc.flip && desc.alternate) {
    Random own(desc.seed, RandomUse::augment, static_cast<std::uint64_t>(-1), static_cast<std::uint64_t>(id));
    result.flip = (own.below(2) + static_cast<std::uint64_t>(epoch)) % 2 == 1;
  }
  return result;
}

/// Returns which pixel, 0 .. extent - 1, appears at a coordinate that may be outside of the image. With reflection and
/// e = extent - 1 the pixels repeat as 0 1 .. e .. 1 0 1 .. without end. Without reflection a coordinate outside gives
/// -1.
std::int64_t shown(std::int64_t place, std::int64_t extent, bool reflect) {
  if (place >= 0 && place < extent) {
    return place;
  }
  if (!reflect) {
    return -1;
  }
  const std::int64_t period = 2 * (extent - 1);
  const std::int64_t in_period = (place % period + period) % period;
  return in_period < extent ? in_period : period - in_period;
}

/// Computes the expected output in separate steps: pads, crops, mirrors, normalises.
void oracle(const AugmentParams& p, Inputs in, Outputs expected) {
  const AugmentDesc desc = augment_desc(p);
  const auto epoch = in[2].span<std::int64_t>()[0];
  const std::int64_t height = p.out[1];
  const std::int64_t width = p.out[2];
  const std::int64_t padded_width = width + 2 * p.pad;
  const auto images = in[0].span<std::uint8_t>();
  std::vector<double> out(static_cast<std::size_t>(p.out.numel()), 0.0);
  for (std::int64_t n = 0; n < p.out[0] && (p.valid < 0 || n < p.valid); ++n) {
    const Draw at = draw(desc, epoch, in[1].span<std::int64_t>()[static_cast<std::size_t>(n)]);
    std::vector<double> padded(static_cast<std::size_t>((height + 2 * p.pad) * padded_width * 3), 0.0);
    for (std::int64_t h = -p.pad; h < height + p.pad; ++h) {
      for (std::int64_t w = -p.pad; w < width + p.pad; ++w) {
        const std::int64_t y = shown(h, height, p.reflect);
        const std::int64_t x = shown(w, width, p.reflect);
        for (std::int64_t c = 0; c < 3 && y >= 0 && x >= 0; ++c) {
          padded[static_cast<std::size_t>(((h + p.pad) * padded_width + p.pad + w) * 3 + c)] =
              images[static_cast<std::size_t>(((n * height + y) * width + x) * 3 + c)];
        }
      }
    }
    for (std::int64_t h = 0; h < height; ++h) {
      for (std::int64_t w = 0; w < width; ++w) {
        const std::int64_t crop = (h + at.row) * padded_width + at.column + (at.flip ? width - 1 - w : w);
        for (std::int64_t c = 0; c < 3; ++c) {
          const auto channel = static_cast<std::size_t>(c);
          out[static_cast<std::size_t>(((n * height + h) * width + w) * p.out[3] + c)] =
              (padded[static_cast<std::size_t>(crop * 3 + c)] / 255 - static_cast<double>(desc.mean[channel])) /
              static_cast<double>(desc.std[channel]);
        }
      }
    }
  }
  expected[0].assign(out);
}

TEST(Augment, MatchesPadCropFlipNormaliseInSteps) {
  for (const AugmentParams& p : augment_params()) {
    expect_matches(augment_case(p), [&](Inputs in, Outputs expected) { oracle(p, in, expected); });
  }
}

/// Returns the augmented image of 2 x 3 pixels with the bytes 1..18. std is 1 / 255, so the output shows the bytes
/// themselves.
std::vector<double> small_image(const AugmentDesc& base, std::int64_t id, std::int64_t channels) {
  CpuContext context;
  AugmentDesc desc = base;
  desc.std = {1.0F / 255, 1.0F / 255, 1.0F / 255};
  GuardedTensor image(Shape{1, 2, 3, 3}, DType::u8);
  for (std::size_t i = 0; i < 18; ++i) {
    image.span<std::uint8_t>()[i] = static_cast<std::uint8_t>(i + 1);
  }
  GuardedTensor ids(Shape{1}, DType::i64, constant(static_cast<double>(id)));
  GuardedTensor epoch(Shape{}, DType::i64, constant(0));
  GuardedTensor out(Shape{1, 2, 3, channels}, DType::f64);
  ops::augment(context, desc, image, ids, epoch, {}, out);
  std::vector<double> values = out.values();
  for (double& value : values) {
    value = std::round(value * 1e4) / 1e4;
  }
  return values;
}

/// Returns the first sample id whose random draws in epoch 0 are this row, column and flip.
std::int64_t sample_with(const AugmentDesc& desc, std::int64_t row, std::int64_t column, bool flip) {
  for (std::int64_t id = 0; id < 1000; ++id) {
    const Draw at = draw(desc, 0, id);
    if (at.row == row && at.column == column && at.flip == flip) {
      return id;
    }
  }
  ADD_FAILURE() << "no sample is placed like that";
  return 0;
}

TEST(Augment, PixelsByHand) {
  const AugmentDesc desc{.pad = 1, .flip = true, .seed = 7};
  // The window in the middle of the padded image is the image itself.
  EXPECT_EQ(small_image(desc, sample_with(desc, 1, 1, false), 3),
            (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
  // Expects the mirrored image, with a fourth channel.
  EXPECT_EQ(small_image(desc, sample_with(desc, 1, 1, true), 4),
            (std::vector<double>{7, 8, 9, 0, 4, 5, 6, 0, 1, 2, 3, 0, 16, 17, 18, 0, 13, 14, 15, 0, 10, 11, 12, 0}));
  // The window begins one row above and one column left of the image, so the first row and column show padding.
  EXPECT_EQ(small_image(desc, sample_with(desc, 0, 0, false), 3),
            (std::vector<double>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6}));
  // Expects the image one row down and one column right, then mirrored.
  EXPECT_EQ(small_image(desc, sample_with(desc, 2, 2, true), 3),
            (std::vector<double>{0, 0, 0, 16, 17, 18, 13, 14, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  // Padding is black before the normalisation, so it becomes (0 - mean) / std.
  AugmentDesc shifted = desc;
  shifted.mean = {2.0F / 255, 0, 0};
  EXPECT_EQ(small_image(shifted, sample_with(desc, 0, 0, false), 3)[0], -2);
  // Without padding and flips the op draws no random number and copies the image.
  EXPECT_EQ(small_image({}, 12345, 3)[0], 1);
}

TEST(Augment, ReflectedPixelsByHand) {
  const AugmentDesc desc{.pad = 1, .flip = true, .reflect = true, .seed = 7};
  // The window begins one row above and one column left of the image. Reflection shows row 1 above row 0, and column 1
  // left of column 0.
  EXPECT_EQ(small_image(desc, sample_with(desc, 0, 0, false), 3),
            (std::vector<double>{13, 14, 15, 10, 11, 12, 13, 14, 15, 4, 5, 6, 1, 2, 3, 4, 5, 6}));
  // Expects the image one row down and one column right, then mirrored.
  EXPECT_EQ(small_image(desc, sample_with(desc, 2, 2, true), 3),
            (std::vector<double>{13, 14, 15, 16, 17, 18, 13, 14, 15, 4, 5, 6, 7, 8, 9, 4, 5, 6}));
}

TEST(Augment, AnAlternatingFlipShowsBothSidesInTwoEpochs) {
  CpuContext context({.threads = 2});
  const AugmentDesc desc{.flip = true, .alternate = true, .seed = 3};
  constexpr std::int64_t kSamples = 400;
  GuardedTensor images(Shape{kSamples, 1, 2, 3}, DType::u8, constant(0));
  GuardedTensor ids(Shape{kSamples}, DType::i64);
  for (std::int64_t n = 0; n < kSamples; ++n) {
    ids.span<std::int64_t>()[static_cast<std::size_t>(n)] = n;
    std::fill_n(images.span<std::uint8_t>().data() + n * 6, 3, std::uint8_t{255});  // the left pixel is white
  }
  const auto mirrored_in = [&](std::int64_t epoch_number) {
    GuardedTensor epoch(Shape{}, DType::i64, constant(static_cast<double>(epoch_number)));
    GuardedTensor out(Shape{kSamples, 1, 2, 3}, DType::f32);
    ops::augment(context, desc, images, ids, epoch, {}, out);
    std::vector<bool> mirrored;
    for (std::int64_t n = 0; n < kSamples; ++n) {
      const float left = out.span<float>()[static_cast<std::size_t>(n * 6)];
      EXPECT_EQ(out.span<float>()[static_cast<std::size_t>(n * 6 + 3)], 1 - left);
      mirrored.push_back(left == 0);
    }
    return mirrored;
  };
  const std::vector<bool> first = mirrored_in(0);
  const auto count = std::count(first.begin(), first.end(), true);
  EXPECT_TRUE(count > 150 && count < 250) << count << " of 400, five deviations from the half";
  std::vector<bool> other = first;
  other.flip();
  for (const std::int64_t epoch : {1, 2, 3, 8, 13}) {
    EXPECT_EQ(mirrored_in(epoch), epoch % 2 == 0 ? first : other) << epoch;
  }
}

TEST(Augment, ASampleLooksTheSameAtEveryPlaceOfTheBatch) {
  CpuContext context({.threads = 2});
  const AugmentDesc desc{.pad = 4, .flip = true, .mean = {0.5F, 0.5F, 0.5F}, .std = {0.2F, 0.3F, 0.4F}, .seed = 9};
  constexpr std::int64_t kSamples = 23;
  constexpr std::int64_t kPixels = 9 * 11;
  GuardedTensor images(Shape{kSamples, 9, 11, 3}, DType::u8, integers(1, 0, 255));
  GuardedTensor ids(Shape{kSamples}, DType::i64, integers(2, 0, 1000000));
  GuardedTensor epoch(Shape{}, DType::i64, constant(5));
  GuardedTensor out(Shape{kSamples, 9, 11, 4}, DType::f32);
  ops::augment(context, desc, images, ids, epoch, {}, out);
  GuardedTensor turned_images(images.view().shape, DType::u8);
  GuardedTensor turned_ids(ids.view().shape, DType::i64);
  GuardedTensor turned_out(out.view().shape, DType::f32);
  for (std::int64_t n = 0; n < kSamples; ++n) {
    const std::int64_t from = (n * 7 + 3) % kSamples;
    turned_ids.span<std::int64_t>()[static_cast<std::size_t>(n)] =
        ids.span<std::int64_t>()[static_cast<std::size_t>(from)];
    std::memcpy(turned_images.span<std::uint8_t>().data() + n * kPixels * 3,
                images.span<std::uint8_t>().data() + from * kPixels * 3, kPixels * 3);
  }
  ops::augment(context, desc, turned_images, turned_ids, epoch, {}, turned_out);
  for (std::int64_t n = 0; n < kSamples; ++n) {
    const std::int64_t from = (n * 7 + 3) % kSamples;
    expect_same_bits(turned_out.view().slice(0, n, n + 1), out.view().slice(0, from, from + 1));
    EXPECT_FALSE(has_same_bits(turned_out.view().slice(0, n, n + 1),
                               out.view().slice(0, (from + 1) % kSamples, (from + 1) % kSamples + 1)));
  }
  // Another epoch or another seed must draw other windows.
  epoch.constant(6);
  ops::augment(context, desc, images, ids, epoch, {}, turned_out);
  EXPECT_FALSE(has_same_bits(turned_out, out));
  epoch.constant(5);
  AugmentDesc other = desc;
  other.seed = 10;
  ops::augment(context, other, images, ids, epoch, {}, turned_out);
  EXPECT_FALSE(has_same_bits(turned_out, out));
}

TEST(Augment, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    expect_same_bits_for_threads(augment_case({Shape{37, 13, 17, 4}, dtype, 4, true, 31}));
  }
}

TEST(Augment, NegativeValidMeansNoSample) {
  CpuContext context;
  OpCase item = augment_case({Shape{3, 2, 2, 3}, DType::f32, 0, false, 1});
  item.inputs[3].start = constant(-4);
  const CheckedRun instance(item, context);
  EXPECT_EQ(instance.output(0).values(), std::vector<double>(36, 0.0));
}

TEST(Augment, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor images(Shape{2, 4, 3, 3}, DType::u8);
  const GuardedTensor ids(Shape{2}, DType::i64);
  const GuardedTensor epoch(Shape{}, DType::i64);
  const GuardedTensor valid(Shape{}, DType::i64);
  const GuardedTensor out(Shape{2, 4, 3, 4}, DType::f32);
  struct Arguments {
    TensorView images, ids, epoch, valid, out;
    AugmentDesc desc;
  };
  const Arguments good{images, ids, epoch, valid, out, {.pad = 2, .flip = true}};
  const auto call = [&](auto&& change) {
    Arguments a = good;
    change(a);
    ops::augment(context, a.desc, a.images, a.ids, a.epoch, a.valid, a.out);
  };
  EXPECT_NO_THROW(call([](Arguments&) {}));
  for (TensorView Arguments::*view :
       {&Arguments::images, &Arguments::ids, &Arguments::epoch, &Arguments::valid, &Arguments::out}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::f16; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{2, 4, 3}; }), ShapeError);
  }
  for (TensorView Arguments::*view : {&Arguments::images, &Arguments::ids, &Arguments::epoch, &Arguments::out}) {
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), ShapeError) << "not given";
  }
  EXPECT_THROW(call([](Arguments& a) { a.images.shape = Shape{2, 4, 3, 4}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.shape = Shape{2, 4, 3, 5}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.shape = Shape{2, 3, 4, 4}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.images.strides = Strides{36, 3, 12, 1}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.strides = Strides{48, 4, 16, 1}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.ids.strides = Strides{2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.data = a.images.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.data = a.epoch.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.desc.pad = -1; }), UsageError);
  EXPECT_THROW(call([](Arguments& a) { a.desc.pad = (std::int64_t{1} << 30) + 1; }), UsageError);
  EXPECT_NO_THROW(call([](Arguments& a) { a.desc.reflect = true; }));
  expect_holds(error_of<UsageError>([&] {
                 call([](Arguments& a) {
                   a.desc.pad = 3;
                   a.desc.reflect = true;
                 });
               }),
               "pad is 3 and reflects, images are (2, 4, 3, 3), expected a pad below both sides");
  for (const float value : {0.0F, -1.0F, std::nanf(""), HUGE_VALF}) {
    EXPECT_THROW(call([=](Arguments& a) { a.desc.std[1] = value; }), UsageError) << value;
  }
  EXPECT_THROW(call([](Arguments& a) { a.desc.mean[2] = std::nanf(""); }), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
