#include "tests/kernels/erase_and_mix_cases.hpp"

#include <cmath>
#include <limits>
#include <set>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Row = std::vector<double>;

/// Returns the value after a volatile store. Each product and sum is thus rounded on its own, because the compiler
/// cannot contract a multiply-add across the store.
float rounded(float value) {
  volatile float stored = value;
  return stored;
}

/// Returns true if the rectangle (left, top, right, bottom), with its edges truncated to integers, contains pixel (x,
/// y).
bool holds(const double* rectangle, std::int64_t x, std::int64_t y) {
  return static_cast<double>(x) >= std::trunc(rectangle[0]) && static_cast<double>(y) >= std::trunc(rectangle[1]) &&
         static_cast<double>(x) < std::trunc(rectangle[2]) && static_cast<double>(y) < std::trunc(rectangle[3]);
}

/// Computes the expected output one pixel at a time. images: the images of all samples.
void oracle(const EraseAndMixParams& p, const Bytes& images, Outputs expected) {
  const Row erasures = erasure_table(p);
  const Row mixtures = mixture_table(p);
  const std::int64_t pictures = p.images[1];
  const std::int64_t height = p.images[2];
  const std::int64_t width = p.images[3];
  const std::span<std::uint8_t> out = expected[0].span<std::uint8_t>();
  std::size_t at = 0;
  for (std::int64_t n = 0; n < p.images[0]; ++n) {
    const double* mixture = mixtures.data() + n * (ops::kMixtureColumns + p.gap);
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) {
          const auto erased = [&](std::int64_t picture) {
            const std::int64_t number = n * pictures + picture;
            const double* rectangle = erasures.data() + number * (ops::kErasureColumns + p.gap);
            const std::int64_t byte = ((number * height + y) * width + x) * 3 + c;
            return holds(rectangle, x, y) ? kEraseFill[static_cast<std::size_t>(c)]
                                          : images[static_cast<std::size_t>(byte)];
          };
          std::uint8_t shown = erased(0);
          if (pictures == 2 && mixture[0] == 1) {
            shown = holds(mixture + 2, x, y) ? erased(1) : shown;
          } else if (pictures == 2) {
            const auto share = static_cast<float>(mixture[1]);
            const float both = rounded(rounded(share * shown) + rounded(rounded(1 - share) * erased(1)));
            shown = static_cast<std::uint8_t>(rounded(both + 0.5F));
          }
          out[at++] = shown;
        }
      }
    }
  }
}

TEST(EraseAndMix, MatchesAPixelAtATime) {
  for (const EraseAndMixParams& p : erase_and_mix_params()) {
    expect_matches(erase_and_mix_case(p), [&](Inputs in, Outputs expected) {
      const GuardedTensor& images = p.in_place ? expected[0] : in.back();
      const auto bytes = images.span<std::uint8_t>();
      oracle(p, Bytes(bytes.begin(), bytes.end()), expected);
    });
  }
}

/// Runs the op on one sample that has a single row of pixels. pictures: one or two pictures of 3 bytes a pixel.
Bytes result(const std::vector<Bytes>& pictures, const Row& erasures, const Row& mixture = {}) {
  CpuContext context;
  const auto count = static_cast<std::int64_t>(pictures.size());
  OpCase item = erase_and_mix_case({Shape{1, count, 1, static_cast<std::int64_t>(pictures[0].size() / 3), 3}});
  Row bytes;
  for (const Bytes& picture : pictures) {
    bytes.insert(bytes.end(), picture.begin(), picture.end());
  }
  item.inputs.front().start = values(erasures);
  item.inputs.back().start = values(bytes);
  if (count == 2) {
    item.inputs[1].start = values(mixture);
  }
  const CheckedRun instance(item, context);
  const auto out = instance.output(0).span<std::uint8_t>();
  return {out.begin(), out.end()};
}

TEST(EraseAndMix, ByHand) {
  const Bytes a{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Bytes b{101, 102, 103, 104, 105, 106, 107, 108, 109};
  const Row none{0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(result({a}, {0, 0, 0, 0}), a);
  EXPECT_EQ(result({a}, {1, 0, 2, 1}), (Bytes{1, 2, 3, 11, 222, 133, 7, 8, 9}));
  EXPECT_EQ(result({a}, {0, 0, 3, 1}), (Bytes{11, 222, 133, 11, 222, 133, 11, 222, 133}));
  // A mixture of kind 1 shows a rectangle of picture 1 over picture 0. Both pictures are erased first.
  EXPECT_EQ(result({a, b}, none, {1, 0.3, 1, 0, 3, 1}), (Bytes{1, 2, 3, 104, 105, 106, 107, 108, 109}));
  EXPECT_EQ(result({a, b}, none, {1, 0.3, 0, 0, 0, 0}), a);
  EXPECT_EQ(result({a, b}, none, {1, 0.3, 0, 0, 3, 1}), b);
  EXPECT_EQ(result({a, b}, {0, 0, 1, 1, 2, 0, 3, 1}, {1, 0.3, 1, 0, 3, 1}),
            (Bytes{11, 222, 133, 104, 105, 106, 11, 222, 133}));
  EXPECT_EQ(result({a, b}, {2, 0, 3, 1, 0, 0, 1, 1}, {1, 0.3, 1, 0, 3, 1}),
            (Bytes{1, 2, 3, 104, 105, 106, 107, 108, 109}));
  // A mixture of kind 0 blends: here a quarter of a and three quarters of b. 0.5 is rounded up.
  EXPECT_EQ(result({a, b}, none, {0, 0.25, 1, 0, 3, 1}), (Bytes{76, 77, 78, 79, 80, 81, 82, 83, 84}));
  EXPECT_EQ(result({a, b}, none, {0, 1, 1, 0, 3, 1}), a);
  EXPECT_EQ(result({a, b}, none, {0, 0, 1, 0, 3, 1}), b);
  EXPECT_EQ(result({{1, 1, 1}, {2, 4, 255}}, none, {0, 0.5, 0, 0, 0, 0}), (Bytes{2, 3, 128}));
  EXPECT_EQ(result({{255, 255, 255}, {255, 254, 0}}, none, {0, 0.1, 0, 0, 0, 0}), (Bytes{255, 254, 26}));
  // The erased picture has the colour (11, 222, 133), so the result is 0.5 * (1, 2, 3) + 0.5 * (11, 222, 133),
  // whichever picture is erased.
  EXPECT_EQ(result({{1, 2, 3}, {9, 9, 9}}, {0, 0, 0, 0, 0, 0, 1, 1}, {0, 0.5, 0, 0, 0, 0}), (Bytes{6, 112, 68}));
  EXPECT_EQ(result({{9, 9, 9}, {1, 2, 3}}, {0, 0, 1, 1, 0, 0, 0, 0}, {0, 0.5, 0, 0, 0, 0}), (Bytes{6, 112, 68}));
}

TEST(EraseAndMix, ValuesOutOfRangeByHand) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  const Bytes a{1, 2, 3, 4, 5, 6};
  const Bytes b{101, 102, 103, 104, 105, 106};
  const Bytes filled{11, 222, 133, 11, 222, 133};
  const Row none{0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(result({a}, {-infinity, -1e300, infinity, 1e300}), filled);
  EXPECT_EQ(result({a}, {nan, nan, 2, 1}), filled);
  EXPECT_EQ(result({a}, {0, 0, nan, 1}), a);
  EXPECT_EQ(result({a}, {0, 0, 2, nan}), a);
  EXPECT_EQ(result({a}, {1, 0, 0, 1}), a);
  EXPECT_EQ(result({a}, {0.9, 0, 1.9, 1}), (Bytes{11, 222, 133, 4, 5, 6}));
  for (const double share : {-1.0, -infinity, nan}) {
    EXPECT_EQ(result({a, b}, none, {0, share, 0, 0, 0, 0}), b) << share;
  }
  for (const double share : {1.5, infinity}) {
    EXPECT_EQ(result({a, b}, none, {0, share, 0, 0, 0, 0}), a) << share;
  }
  for (const double cut : {nan, 2.0, -1.0, 0.5}) {
    EXPECT_EQ(result({a, b}, none, {cut, 0, 0, 0, 0, 0}), b) << cut << " is not 1";
  }
  EXPECT_EQ(result({a, b}, none, {1, nan, -5, -5, 1, 99}), (Bytes{101, 102, 103, 4, 5, 6}));
}

TEST(EraseAndMix, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(erase_and_mix_case({Shape{17, 2, 13, 11, 3}, 1}));
  expect_same_bits_for_threads(erase_and_mix_case({Shape{17, 1, 13, 11, 3}, 0, true}));
}

TEST(EraseAndMix, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor images(Shape{2, 2, 4, 3, 3}, DType::u8);
  GuardedTensor erasures(Shape{2, 2, 4}, DType::f64, constant(0));
  GuardedTensor mixtures(Shape{2, 6}, DType::f64, constant(0));
  const GuardedTensor out(Shape{2, 4, 3, 3}, DType::u8);
  struct Arguments {
    TensorView images, erasures, mixtures, out;
  };
  const Arguments two{images, erasures, mixtures, out};
  const Arguments one{images.view().slice(0, 0, 1).reshape(Shape{2, 1, 4, 3, 3}),
                      erasures.view().slice(0, 0, 1).reshape(Shape{2, 1, 4}), TensorView(), out};
  const auto run = [&](const Arguments& a) {
    ops::erase_and_mix(context, kEraseFill, a.images, a.erasures, a.mixtures, a.out);
  };
  const auto call = [&](auto&& change) {
    Arguments a = two;
    change(a);
    run(a);
  };
  EXPECT_NO_THROW(run(two));
  EXPECT_NO_THROW(run(one));
  for (TensorView Arguments::*view :
       {&Arguments::images, &Arguments::erasures, &Arguments::mixtures, &Arguments::out}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::f16; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{2, 4, 3}; }), ShapeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape[0] = 1; }), ShapeError);
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), ShapeError) << "not given";
  }
  for (TensorView Arguments::*view : {&Arguments::erasures, &Arguments::mixtures}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).data = static_cast<std::byte*>((a.*view).data) + 1; }), ShapeError);
  }
  EXPECT_THROW(call([](Arguments& a) { a.images.shape = Shape{2, 2, 3, 3, 4}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.images.shape = Shape{2, 3, 4, 2, 3}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.images.shape = Shape{2, 0, 4, 3, 3}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.images.strides = Strides{72, 36, 3, 12, 1}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.strides = Strides{36, 3, 12, 1}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.shape = Shape{2, 3, 4, 3}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.erasures.strides = Strides{1, 2, 4}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.mixtures.strides = Strides{1, 2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.mixtures.shape = Shape{2, 5}; }), ShapeError);
  // Expects an error for mixtures if there is one picture only.
  Arguments mixed = one;
  mixed.mixtures = mixtures;
  EXPECT_THROW(run(mixed), ShapeError);
  // The output may overwrite the images if each sample has one picture, but not if each has two. No other views may
  // overlap.
  Arguments in_place = one;
  in_place.out.data = in_place.images.data;
  EXPECT_NO_THROW(run(in_place));
  in_place.out.data = static_cast<std::uint8_t*>(in_place.images.data) + 3;
  EXPECT_THROW(run(in_place), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.data = a.images.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.out.data = static_cast<std::uint8_t*>(a.images.data) + 72; }), ShapeError);
  GuardedTensor memory(Shape{64}, DType::f64, constant(0));
  auto* const at = memory.span<double>().data();
  const TensorView within(at + 30, DType::u8, Device::cpu(), out.view().shape);  // occupies the memory of 9 f64 numbers
  const auto table = [&](std::int64_t from, std::int64_t stride) {
    return TensorView(at + from, DType::f64, Device::cpu(), Shape{2, 6}, Strides{stride, 1});
  };
  EXPECT_NO_THROW(call([&](Arguments& a) { a.out = within, a.mixtures = table(18, 6); }));
  EXPECT_THROW(call([&](Arguments& a) { a.out = within, a.mixtures = table(18, 7); }), ShapeError);
  EXPECT_THROW(call([&](Arguments& a) { a.out = within, a.mixtures = table(39, -1); }), ShapeError);
  EXPECT_THROW(call([&](Arguments& a) {
                 a.out = within;
                 a.erasures = TensorView(at + 19, DType::f64, Device::cpu(), Shape{2, 2, 4}, Strides{4, 4, 1});
               }),
               ShapeError);
  // Expects an error for too many pixels. The batch is empty, so the tensors need no memory.
  const auto large = [&](std::int64_t width) {
    call([=](Arguments& a) {
      const std::int64_t height = std::int64_t{1} << 16;
      a.images = TensorView(a.images.data, DType::u8, Device::cpu(), Shape{0, 2, height, width, 3});
      a.erasures = TensorView(a.erasures.data, DType::f64, Device::cpu(), Shape{0, 2, 4});
      a.mixtures = TensorView(a.mixtures.data, DType::f64, Device::cpu(), Shape{0, 6});
      a.out = TensorView(a.out.data, DType::u8, Device::cpu(), Shape{0, height, width, 3});
    });
  };
  EXPECT_NO_THROW(large((std::int64_t{1} << 15) - 1));
  EXPECT_THROW(large(std::int64_t{1} << 15), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
