#include <lockstep/runtime/tensor/tensor_view.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/error_of.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::testing {
namespace {

/// A tensor of the numbers 0, 1, 2, ... as f32, and its view.
struct Counting {
  explicit Counting(const Shape& shape)
      : values(static_cast<std::size_t>(shape.numel())), view(std::span(values), shape) {
    std::iota(values.begin(), values.end(), 0.0F);
  }
  std::vector<float> values;
  TensorView view;
};

TEST(TensorView, SpanOfTheWrongSizeIsRefused) {
  std::vector<float> six(6);
  EXPECT_NO_THROW(TensorView(std::span(six), Shape{2, 3}));
  EXPECT_THROW(TensorView(std::span(six), Shape{2, 4}), ShapeError);
  EXPECT_THROW(TensorView(six.data(), DType::f32, Device::cpu(), Shape{2, 3}, Strides{1}), ShapeError);
  EXPECT_THROW(TensorView(six.data(), DType::f32, Device::cpu(), Shape{2, -3}), ShapeError);
  EXPECT_THROW(TensorView(nullptr, DType::f64, Device::cpu(), Shape{std::numeric_limits<std::int64_t>::max()}),
               ShapeError);
}

TEST(TensorView, GivenAndNotGiven) {
  EXPECT_FALSE(TensorView().given());
  EXPECT_TRUE(TensorView(nullptr, DType::f32, Device::cpu(), Shape{0}).given());
  float x = 0;
  EXPECT_TRUE(TensorView(std::span(&x, 1), Shape{}).given());
}

TEST(TensorView, ReadingAsAnotherTypeIsRefused) {
  const Counting t(Shape{2, 3});
  EXPECT_EQ(t.view.as<float>(), t.view.data);
  EXPECT_EQ(t.view.span<const float>().size(), 6U);
  EXPECT_THROW(static_cast<void>(t.view.as<double>()), DTypeError);
  EXPECT_THROW(static_cast<void>(t.view.span<std::int32_t>()), DTypeError);
  EXPECT_THROW(static_cast<void>(t.view.permute({1, 0}).span<float>()), ShapeError);
}

TEST(TensorView, Contiguous) {
  const Counting t(Shape{2, 3, 5});
  EXPECT_TRUE(t.view.is_contiguous());
  EXPECT_EQ(t.view.bytes(), 120U);
  EXPECT_FALSE(t.view.permute({0, 2, 1}).is_contiguous());
  EXPECT_TRUE(t.view.slice(0, 1, 2).is_contiguous());
  EXPECT_FALSE(t.view.slice(1, 0, 2).is_contiguous());
  EXPECT_TRUE(t.view.slice(1, 2, 2).is_contiguous());  // an empty view is contiguous
  // The stride of an axis of extent 1 does not matter.
  EXPECT_TRUE(TensorView(t.view.data, DType::f32, Device::cpu(), Shape{1, 5}, Strides{77, 1}).is_contiguous());
  EXPECT_TRUE(TensorView(t.view.data, DType::f32, Device::cpu(), Shape{5, 1}, Strides{1, 0}).is_contiguous());
  EXPECT_FALSE(TensorView(t.view.data, DType::f32, Device::cpu(), Shape{5}, Strides{0}).is_contiguous());
  EXPECT_FALSE(TensorView(t.view.data, DType::f32, Device::cpu(), Shape{5}, Strides{-1}).is_contiguous());
}

TEST(TensorView, SlicePermuteReshapeSeeTheRightElements) {
  const Counting t(Shape{2, 3, 4});
  using Values = std::vector<double>;
  EXPECT_EQ(to_doubles(t.view.slice(1, 1, 2)), (Values{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(to_doubles(t.view.slice(2, 3, 4).slice(0, 1, 2)), (Values{15, 19, 23}));
  const TensorView turned = t.view.permute({2, 0, 1});
  EXPECT_EQ(turned.shape, (Shape{4, 2, 3}));
  EXPECT_EQ(to_doubles(turned.slice(0, 1, 2)), (Values{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(t.view.reshape(Shape{6, 4}).strides, (Strides{4, 1}));
  EXPECT_EQ(t.view.reshape(Shape{24}).data, t.view.data);
}

TEST(TensorView, SlicePermuteReshapeRefuse) {
  const Counting t(Shape{2, 3, 4});
  EXPECT_THROW(static_cast<void>(t.view.slice(3, 0, 1)), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.slice(-1, 0, 1)), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.slice(1, 2, 4)), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.slice(1, 2, 1)), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.slice(1, -1, 1)), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.permute({0, 1})), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.permute({0, 1, 1})), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.permute({0, 1, 3})), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.reshape(Shape{5, 5})), ShapeError);
  EXPECT_THROW(static_cast<void>(t.view.permute({1, 0, 2}).reshape(Shape{24})), ShapeError);
}

TEST(TensorView, Overlaps) {
  const Counting t(Shape{10});
  EXPECT_TRUE(overlaps(t.view, t.view));
  EXPECT_TRUE(overlaps(t.view.slice(0, 0, 6), t.view.slice(0, 5, 10)));
  EXPECT_FALSE(overlaps(t.view.slice(0, 0, 5), t.view.slice(0, 5, 10)));
  EXPECT_FALSE(overlaps(t.view.slice(0, 5, 10), t.view.slice(0, 0, 5)));
  EXPECT_FALSE(overlaps(t.view.slice(0, 5, 5), t.view));
  TensorView elsewhere = t.view;
  elsewhere.device = Device::cuda(0);
  EXPECT_FALSE(overlaps(t.view, elsewhere));
}

TEST(TensorView, RequireOnNamesBothDevices) {
  const Counting t(Shape{2});
  TensorView elsewhere = t.view;
  elsewhere.device = Device::cuda(1);
  const TensorView not_given;
  EXPECT_NO_THROW(require_on(Device::cpu(), "op", {&t.view, &not_given}));
  EXPECT_NO_THROW(require_on(Device::cuda(1), "op", {&elsewhere, &not_given}));
  EXPECT_EQ(error_of<DeviceError>([&] {
              require_on(Device::cpu(), "add", {&t.view, &elsewhere});
            }),
            "add: tensor 1 is on cuda:1, expected cpu");
}

TEST(TensorView, Prints) {
  EXPECT_EQ(concat(Counting(Shape{2, 3}).view), "f32 (2, 3) on cpu");
}

}  // namespace
}  // namespace lockstep::testing
