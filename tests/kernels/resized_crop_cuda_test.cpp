// Tests resized crops on a GPU: positive, negative and zero row strides of the table, and pictures that are declared
// larger than their memory. cuda_cases_test.cpp runs the test cases that every op has.
#include "tests/kernels/resized_crop_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaResizedCrop = CudaTest;

TEST_F(CudaResizedCrop, RowsOfTheTableAnyDistanceApart) {
  const std::vector<CropRow> rows{{5, 4, crop_axis(0, 5, 3), crop_axis(0, 4, 3)},
                                  {4, 5, crop_axis(1, 4, 3), crop_axis(0, 4, 3)},
                                  {3, 3, crop_axis(0, 1, 3), crop_axis(2, 3, 3)}};
  const auto with_stride = [&](std::int64_t first, std::int64_t stride) {
    OpCase item = resized_crop_case({"strided", 3, 3, rows, 0, 16});
    item.run = [=](Context& context, Views in, Views out, const TensorView&) {
      TensorView parts = in[1].slice(1, 0, ops::kPartColumns);
      parts.data = static_cast<double*>(parts.data) + first;
      parts.strides[0] = stride;
      ops::resized_crop(context, in[0], parts, out[0]);
    };
    return item;
  };
  for (const auto& [first, stride] : {std::pair<std::int64_t, std::int64_t>{0, 16}, {32, -16}, {16, 0}}) {
    const OpCase item = with_stride(first, stride);
    compare(item, cpu(), item, cuda(), 0);
  }
}

TEST_F(CudaResizedCrop, PicturesOf2To27Pixels) {
  // The first 6 bytes are the output image. The next 6 bytes are the first pixels of the picture.
  const Tensor bytes = Tensor::empty(cuda(), Shape{12}, DType::u8);
  const Tensor parts = Tensor::empty(cuda(), Shape{1, ops::kPartColumns}, DType::f64);
  const TensorView out = bytes.view().slice(0, 0, 6).reshape(Shape{1, 1, 2, 3});
  const auto send = [&](const std::vector<double>& numbers, const TensorView& to) {
    const Tensor host = Tensor::empty(cpu(), to.shape, to.dtype);
    from_doubles(numbers, host);
    copy(cuda(), host, to);
    cuda().synchronize();
  };
  const std::vector<double> expected{1, 2, 3, 4, 5, 6};
  const TensorView pixels = bytes.view().slice(0, 6, 12);
  send(expected, pixels);
  const TensorView pictures(pixels.data, DType::u8, pixels.device, Shape{1, std::int64_t{1} << 40});
  const auto image = [&](double width, double height) {
    std::vector<double> cells = cells_of({1, 1, {0, 1, 0, 2}, {0, 1, 0, 1}});
    cells[0] = width;
    cells[1] = height;
    send(cells, parts);
    ops::resized_crop(cuda(), pictures, parts, out);
    return fetch(out);
  };
  constexpr double kMost = 1 << 27;
  const std::vector<double> black(6, 0.0);
  EXPECT_EQ(image(kMost, 1), expected);
  EXPECT_EQ(image(1 << 13, 1 << 14), expected);
  EXPECT_EQ(image(kMost + 1, 1), black);
  EXPECT_EQ(image(2, kMost), black);
  EXPECT_EQ(image(kMost, kMost), black);
}

}  // namespace
}  // namespace lockstep::testing
