#include "tests/kernels/adjust_colours_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"
#include "tests/support/plain_colours.hpp"

namespace lockstep::testing {
namespace {

using ops::ColourKind;

using Bytes = std::vector<std::uint8_t>;

/// Converts a kind, as the op's table stores it, to the enum Colour.
ops::images::Colour colour_of(double kind) {
  using ops::images::Colour;
  return kind == 1 ? Colour::brightness : kind == 2 ? Colour::contrast : kind == 3 ? Colour::saturation : Colour::hue;
}

/// Applies the changes in plain loops, one pixel and one change at a time. image: (pixels, 3).
Bytes plain(const ColourList& list, const Bytes& image) {
  std::vector<float> values;
  for (const std::uint8_t byte : image) {
    values.push_back(static_cast<float>(byte) / 255.0F);
  }
  bool contrast = false;
  for (const auto& [kind, factor] : list) {
    if (kind != 1 && kind != 2 && kind != 3 && kind != 4) {
      continue;
    }
    if (kind == 2 && contrast) {
      continue;
    }
    contrast = contrast || kind == 2;
    plain_change({colour_of(kind), factor}, values);
  }
  Bytes bytes;
  for (const float value : values) {
    bytes.push_back(plain_byte(value));
  }
  return bytes;
}

void oracle(const AdjustColoursParams& p, Outputs images) {
  const auto size = static_cast<std::size_t>(p.images[1] * p.images[2] * 3);
  for (std::size_t n = 0; size > 0 && n < static_cast<std::size_t>(p.images[0]); ++n) {
    const auto image = images[0].span<std::uint8_t>().subspan(n * size, size);
    const Bytes changed = plain(p.lists[n % p.lists.size()], Bytes(image.begin(), image.end()));
    std::copy(changed.begin(), changed.end(), image.begin());
  }
}

TEST(AdjustColours, MatchesPlainLoops) {
  for (const AdjustColoursParams& p : adjust_colours_params()) {
    expect_matches(adjust_colours_case(p), [&](Inputs, Outputs out) { oracle(p, out); });
  }
}

/// Returns the image after its changes, computed by the op.
Bytes changed(const ColourList& list, const Bytes& image) {
  CpuContext context;
  const AdjustColoursParams p{Shape{1, 1, static_cast<std::int64_t>(image.size() / 3), 3}, {list}, 0, ""};
  OpCase item = adjust_colours_case(p);
  item.outputs[0].start = testing::values({image.begin(), image.end()});
  const CheckedRun instance(item, context);
  const auto bytes = instance.output(0).span<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

TEST(AdjustColours, ByHand) {
  const auto brightness = [](double by) { return colour_change(ColourKind::brightness, by); };
  const auto contrast = [](double by) { return colour_change(ColourKind::contrast, by); };
  const auto saturation = [](double by) { return colour_change(ColourKind::saturation, by); };
  const auto hue = [](double by) { return colour_change(ColourKind::hue, by); };
  EXPECT_EQ(changed({brightness(2)}, {10, 100, 200}), (Bytes{20, 200, 255}));
  EXPECT_EQ(changed({brightness(0)}, {10, 100, 200}), (Bytes{0, 0, 0}));
  // 0.2989 * 255 = 76.2
  EXPECT_EQ(changed({saturation(0)}, {255, 0, 0}), (Bytes{76, 76, 76}));
  // The mean grey of black and white is 0.9999 / 2, which is 127.49 of 255.
  EXPECT_EQ(changed({contrast(0)}, {0, 0, 0, 255, 255, 255}), (Bytes{127, 127, 127, 127, 127, 127}));
  EXPECT_EQ(changed({contrast(0.5)}, {0, 0, 0, 255, 255, 255}), (Bytes{64, 64, 64, 191, 191, 191}));
  // A third of the circle turns red to green and blue to red. Half the circle gives the complementary colour.
  EXPECT_EQ(changed({hue(1.0 / 3)}, {200, 0, 0, 0, 0, 90}), (Bytes{0, 200, 0, 90, 0, 0}));
  EXPECT_EQ(changed({hue(-0.5)}, {255, 0, 0, 0, 255, 0}), (Bytes{0, 255, 255, 255, 0, 255}));
  EXPECT_EQ(changed({hue(0.3)}, {77, 77, 77, 0, 0, 0}), (Bytes{77, 77, 77, 0, 0, 0}));
  // The changes apply in order: 200 * 2 is cut to 255 and then halved. In the opposite order nothing is cut.
  EXPECT_EQ(changed({brightness(2), brightness(0.5)}, {10, 100, 200}), (Bytes{10, 100, 128}));
  EXPECT_EQ(changed({brightness(0.5), brightness(2)}, {10, 100, 200}), (Bytes{10, 100, 200}));
  EXPECT_EQ(changed({}, {10, 100, 200}), (Bytes{10, 100, 200}));
}

TEST(AdjustColours, WhatIsNoKindCountsAsNone) {
  Bytes image(17 * 3);
  for (std::size_t i = 0; i < image.size(); ++i) {
    image[i] = static_cast<std::uint8_t>(i * 37 % 256);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double kind : {0.0, -0.0, -1.0, 5.0, 1.5, 3.9999, 1e300, std::nan(""), infinity, -infinity}) {
    EXPECT_EQ(changed({{kind, 0.3}}, image), image) << kind;
    EXPECT_EQ(changed({{kind, std::nan("")}, colour_change(ColourKind::hue, 0.2)}, image),
              changed({colour_change(ColourKind::hue, 0.2)}, image))
        << kind;
  }
  // Of two changes of contrast in a list, only the first may have an effect.
  const auto contrast = colour_change(ColourKind::contrast, 0.3);
  const auto hue = colour_change(ColourKind::hue, 0.2);
  EXPECT_EQ(changed({hue, contrast, hue, contrast}, image), changed({hue, contrast, hue}, image));
  EXPECT_NE(changed({hue, contrast, hue}, image), changed({hue, hue}, image));
}

TEST(AdjustColours, FactorsOutOfRangeChangeNoOtherImage) {
  CpuContext context({.threads = 2});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double factor : {std::nan(""), infinity, -infinity, -3.0, 1e300}) {
    for (const double kind : {1.0, 2.0, 3.0, 4.0}) {
      AdjustColoursParams p{Shape{3, 3, 7, 3}, {{{1, 0.5}}, {{kind, factor}, {2, factor}}, {{2, 0.5}}}, 0, "any bytes"};
      const CheckedRun bad(adjust_colours_case(p), context);
      p.lists[1] = {};
      const CheckedRun good(adjust_colours_case(p), context);
      for (const std::int64_t n : {0, 2}) {
        expect_same_bits(bad.output(0).view().slice(0, n, n + 1), good.output(0).view().slice(0, n, n + 1));
      }
    }
  }
}

TEST(AdjustColours, RowsOfATableMayLieAnywhere) {
  CpuContext context;
  const std::vector<ColourList> lists = random_colour_lists(8, 5);
  const AdjustColoursParams p{Shape{5, 3, 4, 3}, lists, 0, ""};
  AdjustColoursParams turned = p;
  std::reverse(turned.lists.begin(), turned.lists.end());
  const CheckedRun expected(adjust_colours_case(turned), context);
  OpCase item = adjust_colours_case(p);
  const GuardedTensor sums(Shape{5}, DType::i64);
  // The strides are negative: the op reads the rows of the table from the last to the first.
  item.run = [&](Context& c, Views in, Views out, const TensorView&) {
    const TensorView changes(in[0].as<double>() + 4 * ops::kColourColumns, DType::f64, Device::cpu(), in[0].shape,
                             Strides{-ops::kColourColumns, 1});
    ops::adjust_colours(c, out[0], changes, sums);
  };
  expect_same_outputs(CheckedRun(item, context), expected);
  // A row stride of 0 gives all images the same row.
  AdjustColoursParams same = p;
  same.lists = {colour_orders(0.7)[9]};
  const CheckedRun alike(adjust_colours_case(same), context);
  item = adjust_colours_case(same);
  item.run = [&](Context& c, Views in, Views out, const TensorView&) {
    ops::adjust_colours(c, out[0], TensorView(in[0].data, DType::f64, Device::cpu(), in[0].shape, Strides{0, 1}), sums);
  };
  expect_same_outputs(CheckedRun(item, context), alike);
}

// Tests the arithmetic with which kernels/cuda/adjust_colours.cu divides a byte by 255 without a division.
TEST(AdjustColours, AByteIsDividedBy255InThreeSteps) {
  constexpr float kPart = 1.0F / 255.0F;
  int corrected = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto whole = static_cast<float>(byte);
    const float near = rounded(whole * kPart);
    const float value = std::fma(std::fma(-255.0F, near, whole), kPart, near);
    EXPECT_EQ(value, rounded(whole / 255.0F)) << byte;
    corrected += value == near ? 0 : 1;
  }
  EXPECT_GT(corrected, 0) << "the product alone is enough";
}

TEST(AdjustColours, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(adjust_colours_case({Shape{13, 17, 19, 3}, random_colour_lists(5, 13), 2, "threads"}));
  expect_same_bits_for_threads(adjust_colours_case({Shape{24, 9, 31, 3}, colour_orders(0.6), 0, "threads"}));
}

TEST(AdjustColours, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor images(Shape{2, 4, 3, 3}, DType::u8);
  GuardedTensor changes(Shape{2, 8}, DType::f64, constant(0));
  const GuardedTensor sums(Shape{2}, DType::i64);
  struct Arguments {
    TensorView images, changes, sums;
  };
  const Arguments good{images, changes, sums};
  const auto call = [&](auto&& change) {
    Arguments a = good;
    change(a);
    ops::adjust_colours(context, a.images, a.changes, a.sums);
  };
  EXPECT_NO_THROW(call([](Arguments&) {}));
  for (TensorView Arguments::*view : {&Arguments::images, &Arguments::changes, &Arguments::sums}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::f16; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{2, 4, 3}; }), ShapeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape[0] = 1; }), ShapeError);
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), ShapeError) << "not given";
  }
  for (TensorView Arguments::*view : {&Arguments::changes, &Arguments::sums}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).data = static_cast<std::byte*>((a.*view).data) + 1; }), ShapeError);
  }
  EXPECT_THROW(call([](Arguments& a) { a.images.shape = Shape{2, 3, 3, 4}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.images.strides = Strides{36, 3, 12, 1}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.changes.shape = Shape{2, 7}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.changes.strides = Strides{1, 2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.sums.strides = Strides{2}; }), ShapeError);
  // Expects errors for views whose memory overlaps.
  GuardedTensor memory(Shape{100}, DType::f64, constant(0));
  auto* const at = memory.span<double>().data();
  const auto table = [&](double* from, const Strides& strides) {
    return TensorView(from, DType::f64, Device::cpu(), Shape{2, 8}, strides);
  };
  const TensorView image(at + 30, DType::u8, Device::cpu(), images.view().shape);  // as large as 9 f64 numbers
  const TensorView words(at + 30, DType::i64, Device::cpu(), Shape{2});
  EXPECT_NO_THROW(call([&](Arguments& a) { a.images = image, a.changes = table(at + 14, {8, 1}); }));
  EXPECT_NO_THROW(call([&](Arguments& a) { a.images = image, a.changes = table(at + 39, {30, 1}); }));
  EXPECT_THROW(call([&](Arguments& a) { a.images = image, a.changes = table(at + 15, {8, 1}); }), ShapeError);
  EXPECT_THROW(call([&](Arguments& a) { a.images = image, a.changes = table(at + 38, {8, 1}); }), ShapeError);
  EXPECT_THROW(call([&](Arguments& a) { a.images = image, a.changes = table(at + 39, {-1, 1}); }), ShapeError);
  EXPECT_THROW(call([&](Arguments& a) { a.sums = words, a.changes = table(at + 15, {8, 1}); }), ShapeError);
  EXPECT_THROW(call([&](Arguments& a) { a.images = image, a.sums = words; }), ShapeError);
  // Expects an error for too many pixels. The batch is empty, so the tensor needs no memory.
  const auto large = [&](std::int64_t width) {
    call([=](Arguments& a) {
      a.images = TensorView(a.images.data, DType::u8, Device::cpu(), Shape{0, std::int64_t{1} << 16, width, 3});
      a.changes = TensorView(a.changes.data, DType::f64, Device::cpu(), Shape{0, 8});
      a.sums = TensorView(a.sums.data, DType::i64, Device::cpu(), Shape{0});
    });
  };
  EXPECT_NO_THROW(large((std::int64_t{1} << 15) - 1));
  EXPECT_THROW(large(std::int64_t{1} << 15), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
