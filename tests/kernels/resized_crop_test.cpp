#include "tests/kernels/resized_crop_cases.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tests/nn/data/plain_resample.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::PartColumn;
using ops::images::Axis;

/// Computes the expected image of one table row in double, of shape (height, width, 3). pixels: pixels of the picture.
std::vector<double> plain_image(const ResizedCropParams& p, const CropRow& row, std::span<const std::uint8_t> pixels) {
  std::vector<double> image(static_cast<std::size_t>(p.height * p.width * 3), 0.0);
  if (row.black) {
    return image;
  }
  const std::vector<double> cells = cells_of(row);
  const auto cell = [&](PartColumn column) { return cells[static_cast<std::size_t>(column)]; };
  const auto whole = [&](PartColumn column) { return static_cast<std::int64_t>(cell(column)); };
  const auto mean = [&](int axis, std::int64_t output, const std::function<double(std::int64_t)>& value) {
    const auto at = [&](PartColumn column) { return static_cast<PartColumn>(static_cast<int>(column) + 4 * axis); };
    const std::int64_t low = whole(at(PartColumn::x_low));
    const std::int64_t high = whole(at(PartColumn::x_high));
    const double step = cell(at(PartColumn::x_step));
    const double middle = cell(at(PartColumn::x_begin)) + (static_cast<double>(output) + 0.5) * step;
    return plain_mean(std::clamp(middle, static_cast<double>(low), static_cast<double>(high)), step, low, high, value);
  };
  const bool transposed = cell(PartColumn::transposed) == 1;
  const std::int64_t across = transposed ? p.height : p.width;
  const std::int64_t down = transposed ? p.width : p.height;
  std::vector<double> rows;  // picture resized along x, of shape (height, across, 3)
  for (std::int64_t y = 0; y < whole(PartColumn::height); ++y) {
    for (std::int64_t i = 0; i < across * 3; ++i) {
      rows.push_back(mean(0, i / 3, [&](std::int64_t x) {
        const std::int64_t given = x - whole(PartColumn::left);  // pixels outside of the window have no weight
        const bool there = given >= 0 && given < whole(PartColumn::width);
        const std::int64_t at = (y * whole(PartColumn::width) + given) * 3 + i % 3;
        return there ? static_cast<double>(pixels[static_cast<std::size_t>(at)]) : 0.0;
      }));
    }
  }
  for (std::int64_t j = 0; j < down; ++j) {
    for (std::int64_t i = 0; i < across * 3; ++i) {
      const std::int64_t place = transposed ? i / 3 * down + j : j * across + i / 3;
      image[static_cast<std::size_t>(place * 3 + i % 3)] = mean(1, j, [&](std::int64_t y) {
        const std::int64_t given = y - whole(PartColumn::top);
        const bool there = given >= 0 && given < whole(PartColumn::height);
        return there ? rows[static_cast<std::size_t>(given * across * 3 + i)] : 0;
      });
    }
  }
  return image;
}

/// Returns a description of the first wrong byte of the images, or nothing. A byte is right if it is the nearest to the
/// number of the plain loop. If that number is within 1e-3 of halfway between two bytes, both bytes are right.
std::string mistake(const ResizedCropParams& p, const OpInstance& instance) {
  constexpr double kDoubt = 1e-3;
  const auto pictures = instance.inputs()[0].span<std::uint8_t>();
  const auto found = instance.output(0).span<std::uint8_t>();
  const auto bytes = static_cast<std::size_t>(picture_bytes(p));
  for (std::size_t n = 0; n < p.rows.size(); ++n) {
    const std::vector<double> expected = plain_image(p, p.rows[n], pictures.subspan(n * bytes, bytes));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double byte = found[n * expected.size() + i];
      if (byte == std::floor(expected[i] + 0.5)) {
        continue;
      }
      const double between = std::floor(expected[i]) + 0.5;
      if (std::abs(byte - between) != 0.5 || std::abs(expected[i] - between) > kDoubt) {
        return concat(p.name, ", image ", n, ", byte ", i, ": ", byte, ", expected ", expected[i]);
      }
    }
  }
  return {};
}

TEST(ResizedCrop, IsAPlainLoopInDouble) {
  CpuContext context({.threads = 2});
  for (const ResizedCropParams& p : resized_crop_params()) {
    const CheckedRun instance(resized_crop_case(p), context);
    EXPECT_EQ(mistake(p, instance), "");
  }
}

TEST(ResizedCrop, APartElsewhereShows) {
  // Control of mistake(): after a change of the parameters it must find wrong bytes.
  CpuContext context;
  ResizedCropParams p{"one", 4, 4, {{9, 8, crop_axis(1, 9, 4), crop_axis(0, 7, 4)}}};
  const CheckedRun instance(resized_crop_case(p), context);
  EXPECT_EQ(mistake(p, instance), "");
  p.rows[0].x.begin += 0.1;
  EXPECT_NE(mistake(p, instance), "");
  p.rows[0].x.begin -= 0.1;
  p.rows[0].y.low = 1;
  EXPECT_NE(mistake(p, instance), "");
}

/// Runs the op on a picture whose channels hold pixel, pixel + 1 and pixel + 2. Returns channel 0 of the image.
std::vector<double> shown(const CropRow& row, std::int64_t height, std::int64_t width,
                          const std::vector<double>& pixels) {
  CpuContext context;
  OpCase item = resized_crop_case({"by hand", height, width, {row}});
  std::vector<double> bytes;
  for (const double pixel : pixels) {
    bytes.insert(bytes.end(), {pixel, pixel + 1, pixel + 2});
  }
  item.inputs[0].start = values(bytes);
  const CheckedRun instance(item, context);
  const std::vector<double> out = instance.output(0).values();
  std::vector<double> image;
  for (std::size_t i = 0; i < out.size(); i += 3) {
    EXPECT_EQ(out[i + 1], out[i] + 1) << i;
    EXPECT_EQ(out[i + 2], out[i] + 2) << i;
    image.push_back(out[i]);
  }
  return image;
}

TEST(ResizedCrop, PixelsByHand) {
  const Axis one{0, 1, 0, 1};
  // The four outputs have the weights (1, 0), (3/4, 1/4), (1/4, 3/4) and (0, 1).
  EXPECT_EQ(shown({2, 1, {0, 0.5, 0, 2}, one}, 1, 4, {0, 100}), (std::vector<double>{0, 25, 75, 100}));
  // The two outputs have the weights (3, 3, 1, 0) / 7 and (0, 1, 3, 3) / 7.
  EXPECT_EQ(shown({4, 1, {0, 2, 0, 4}, one}, 1, 2, {0, 70, 140, 210}), (std::vector<double>{50, 160}));
  // The part is pixels 1 and 2. The pixels outside of the part have no weight, and the part's edge pixels repeat.
  EXPECT_EQ(shown({4, 1, {1, 0.5, 1, 3}, one}, 1, 4, {0, 100, 200, 0}), (std::vector<double>{100, 125, 175, 200}));
  EXPECT_EQ(shown({1, 4, one, {1, 0.5, 1, 3}}, 4, 1, {0, 100, 200, 0}), (std::vector<double>{100, 125, 175, 200}));
  // A picture of one pixel fills the image.
  EXPECT_EQ(shown({1, 1, {0, 1.0 / 3, 0, 1}, one}, 1, 3, {7}), (std::vector<double>{7, 7, 7}));
}

TEST(ResizedCrop, ThePartItselfMirroredAndTransposed) {
  const std::vector<double> picture{1, 2, 3, 4, 5, 6};
  const Axis x{0, 1, 0, 3};
  const Axis y{0, 1, 0, 2};
  EXPECT_EQ(shown({3, 2, x, y}, 2, 3, picture), picture);
  EXPECT_EQ(shown({3, 2, mirrored(x, 3), y}, 2, 3, picture), (std::vector<double>{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(shown({3, 2, x, mirrored(y, 2)}, 2, 3, picture), (std::vector<double>{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(shown({3, 2, x, y, true}, 3, 2, picture), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(shown({3, 2, mirrored(x, 3), y, true}, 3, 2, picture), (std::vector<double>{3, 6, 2, 5, 1, 4}));
  EXPECT_EQ(shown({3, 2, {1, 1, 1, 3}, {1, 1, 1, 2}}, 1, 2, picture), (std::vector<double>{5, 6}));
}

TEST(ResizedCrop, TheSameBitsForAnyNumberOfThreads) {
  for (const ResizedCropParams& p : resized_crop_params()) {
    expect_same_bits_for_threads(resized_crop_case(p));
  }
}

/// A picture may have up to 2^27 pixels. The op must read only the bytes of the part that it shows.
TEST(ResizedCrop, PicturesOf2To27Pixels) {
  CpuContext context;
  // The first 6 bytes are the output image, and the next 6 are the picture's pixels. The picture is declared far larger
  // than its memory.
  std::vector<std::uint8_t> bytes{0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6};
  const TensorView pictures(bytes.data() + 6, DType::u8, Device::cpu(), Shape{1, std::int64_t{1} << 40});
  const GuardedTensor parts(Shape{1, ops::kPartColumns}, DType::f64);
  const TensorView out(bytes.data(), DType::u8, Device::cpu(), Shape{1, 1, 2, 3});
  const auto image = [&](double width, double height) {
    std::vector<double> cells = cells_of({1, 1, {0, 1, 0, 2}, {0, 1, 0, 1}});
    cells[0] = width;
    cells[1] = height;
    from_doubles(cells, parts);
    ops::resized_crop(context, pictures, parts, out);
    return to_doubles(out);
  };
  constexpr double kMost = 1 << 27;
  const std::vector<double> expected{1, 2, 3, 4, 5, 6};
  const std::vector<double> black(6, 0.0);
  EXPECT_EQ(image(kMost, 1), expected);
  EXPECT_EQ(image(1 << 13, 1 << 14), expected);
  EXPECT_EQ(image(kMost + 1, 1), black);
  EXPECT_EQ(image(2, kMost), black);
  EXPECT_EQ(image(kMost, kMost), black);
}

TEST(ResizedCrop, RowsOfTheTableAnyDistanceApart) {
  CpuContext context;
  constexpr std::int64_t kSamples = 3;
  GuardedTensor pictures(Shape{kSamples, 6}, DType::u8, {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6});
  GuardedTensor table(Shape{kSamples * 20}, DType::f64);
  for (std::int64_t n = 0; n < kSamples; ++n) {
    const std::int64_t first = n % 2;
    const std::vector<double> cells = cells_of({2, 1, crop_axis(first, first + 1, 1), {0, 1, 0, 1}});
    std::copy(cells.begin(), cells.end(), table.span<double>().begin() + n * 20);
  }
  const GuardedTensor out(Shape{kSamples, 1, 1, 3}, DType::u8);
  const auto images = [&](std::int64_t begin, std::int64_t stride) {
    const TensorView parts(table.span<double>().data() + begin, DType::f64, Device::cpu(),
                           Shape{kSamples, ops::kPartColumns}, Strides{stride, 1});
    ops::resized_crop(context, pictures, parts, out);
    std::vector<double> colours;
    for (std::size_t n = 0; n < kSamples; ++n) {
      colours.push_back(out.values()[3 * n]);
    }
    return colours;
  };
  EXPECT_EQ(images(0, 20), (std::vector<double>{1, 4, 5}));
  EXPECT_EQ(images(40, -20), (std::vector<double>{1, 4, 5}));
  EXPECT_EQ(images(0, 0), (std::vector<double>{1, 3, 5}));
  EXPECT_EQ(images(20, 0), (std::vector<double>{2, 4, 6}));
}

TEST(ResizedCrop, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor pictures(Shape{2, 400}, DType::u8);
  GuardedTensor table(Shape{2, 20}, DType::f64, constant(0));
  const GuardedTensor out(Shape{2, 3, 4, 3}, DType::u8);
  const TensorView parts = table.view().slice(1, 0, ops::kPartColumns);
  expect_views_checked(
      {pictures, out}, [&](const std::vector<TensorView>& v) { ops::resized_crop(context, v[0], parts, v[1]); }, true);
  const auto with_parts = [&](const auto& change) {
    TensorView changed = parts;
    change(changed);
    ops::resized_crop(context, pictures, changed, out);
  };
  EXPECT_NO_THROW(with_parts([](TensorView& view) { view.strides[0] = ops::kPartColumns; }));
  EXPECT_THROW(with_parts([](TensorView& view) { view.device = Device::cuda(0); }), DeviceError);
  EXPECT_THROW(with_parts([](TensorView& view) { view.dtype = DType::f32; }), DTypeError);
  EXPECT_THROW(with_parts([](TensorView& view) { view = {}; }), ShapeError);
  EXPECT_THROW(with_parts([](TensorView& view) { view.shape[0] = 3; }), ShapeError);
  EXPECT_THROW(with_parts([](TensorView& view) { view.shape[1] = 12; }), ShapeError);
  EXPECT_THROW(with_parts([](TensorView& view) { view.shape = Shape{26}; }), ShapeError);
  EXPECT_THROW(with_parts([](TensorView& view) { view.strides[1] = 2; }), ShapeError);
  EXPECT_THROW(with_parts([](TensorView& view) { view.data = static_cast<std::byte*>(view.data) + 1; }), ShapeError);
  const auto with_out = [&](const Shape& shape, void* data) {
    ops::resized_crop(context, pictures, parts, {data, DType::u8, Device::cpu(), shape});
  };
  void* const data = out.view().data;
  EXPECT_THROW(with_out(Shape{2, 3, 4, 4}, data), ShapeError);
  EXPECT_THROW(with_out(Shape{2, 3, 12}, data), ShapeError);
  EXPECT_NO_THROW(with_out(Shape{2, 4096, 0, 3}, data));
  EXPECT_THROW(with_out(Shape{2, 0, 4097, 3}, data), ShapeError);
  EXPECT_THROW(with_out(Shape{2, 3, 4, 3}, pictures.view().data), ShapeError);
  EXPECT_THROW(with_out(Shape{2, 3, 4, 3}, parts.data), ShapeError);
  EXPECT_THROW(with_out(Shape{2, 3, 1, 3}, table.span<double>().data() + 32), ShapeError) << "the last column";
  EXPECT_NO_THROW(with_out(Shape{2, 3, 1, 3}, table.span<double>().data() + 33)) << "after the last column";
  EXPECT_THROW(
      with_parts([&](TensorView& view) {
        view.data = table.span<double>().data() + 20;
        view.strides[0] = -20;
        ops::resized_crop(context, pictures, view, {table.view().data, DType::u8, Device::cpu(), Shape{2, 3, 1, 3}});
      }),
      ShapeError)
      << "rows that lie backwards";
  expect_holds(error_of<ShapeError>([&] {
                 with_out(Shape{2, 4097, 4, 3}, data);
               }),
               "resized_crop: out is (2, 4097, 4, 3), expected images of at most 4096 x 4096");
  expect_holds(error_of<ShapeError>([&] { with_parts([](TensorView& view) { view.shape[1] = 11; }); }),
               "resized_crop: parts are (2, 11), expected (2, 13)");
  expect_holds(error_of<ShapeError>([&] { with_parts([](TensorView& view) { view.strides[1] = 2; }); }),
               "resized_crop: parts (2, 13) have strides (20, 2), expected stride 1 on the last axis");
}

}  // namespace
}  // namespace lockstep::testing
