#include <lockstep/runtime/tensor/print.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::string text(const TensorView& view, const PrintOptions& options = {}) {
  CpuContext context;
  return to_string(context, view, options);
}

std::string text(std::vector<float> values, const PrintOptions& options = {}) {
  const auto count = static_cast<std::int64_t>(values.size());
  return text(TensorView(std::span(values), Shape{count}), options);
}

TEST(Print, EveryType) {
  CpuContext context;
  const auto arange = [&](DType dtype) { return text(Tensor::arange(context, 9, 12, 1, dtype)); };
  EXPECT_EQ(arange(DType::f32), "[ 9., 10., 11.] f32 (3) on cpu");
  EXPECT_EQ(arange(DType::f64), "[ 9., 10., 11.] f64 (3) on cpu");
  EXPECT_EQ(arange(DType::f16), "[ 9., 10., 11.] f16 (3) on cpu");
  EXPECT_EQ(arange(DType::bf16), "[ 9., 10., 11.] bf16 (3) on cpu");
  EXPECT_EQ(arange(DType::u8), "[ 9, 10, 11] u8 (3) on cpu");
  EXPECT_EQ(arange(DType::i32), "[ 9, 10, 11] i32 (3) on cpu");
  EXPECT_EQ(arange(DType::i64), "[ 9, 10, 11] i64 (3) on cpu");
  EXPECT_EQ(arange(DType::u64), "[ 9, 10, 11] u64 (3) on cpu");
  std::vector<std::int64_t> extremes{std::numeric_limits<std::int64_t>::min(), 7};
  EXPECT_EQ(text(TensorView(std::span(extremes), Shape{2})),
            "[-9223372036854775808,                    7] i64 (2) on cpu");
  std::vector<std::uint64_t> largest{std::numeric_limits<std::uint64_t>::max()};
  EXPECT_EQ(text(TensorView(std::span(largest), Shape{1})), "[18446744073709551615] u64 (1) on cpu");
}

TEST(Print, NumbersHaveOneForm) {
  EXPECT_EQ(text({0, 0.5F, -1}), "[ 0.0000,  0.5000, -1.0000] f32 (3) on cpu");
  EXPECT_EQ(text({1, 2.25F, 3}, {.precision = 2}), "[1.00, 2.25, 3.00] f32 (3) on cpu");
  EXPECT_EQ(text({-0.0F, 3}), "[-0.,  3.] f32 (2) on cpu");
  EXPECT_EQ(text({NAN, kInf, -kInf, 2}), "[ nan,  inf, -inf,   2.] f32 (4) on cpu");
  EXPECT_EQ(text({NAN, 0.5F}), "[   nan, 0.5000] f32 (2) on cpu");
  EXPECT_EQ(text({NAN}), "[nan] f32 (1) on cpu");
  EXPECT_EQ(text({1e8F, 1}), "[1.0000e+08, 1.0000e+00] f32 (2) on cpu");
  EXPECT_EQ(text({99999992, 1}), "[99999992.,        1.] f32 (2) on cpu");
  EXPECT_EQ(text({0.0F, 0.00005F}, {.precision = 1}), "[0.0e+00, 5.0e-05] f32 (2) on cpu");
  EXPECT_EQ(text({1000.5F, 0.5F}, {.precision = 1}), "[1.0e+03, 5.0e-01] f32 (2) on cpu");
  EXPECT_EQ(text({500.5F, 0.51F}, {.precision = 0}), "[500,   1] f32 (2) on cpu");
  std::vector<double> tiny{std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max()};
  EXPECT_EQ(text(TensorView(std::span(tiny), Shape{2}), {.precision = 17}),
            "[4.94065645841246544e-324, 1.79769313486231571e+308] f64 (2) on cpu");
}

TEST(Print, Ranks) {
  CpuContext context;
  EXPECT_EQ(text(Tensor::full(context, Shape{}, 2.5, DType::f32)), "2.5000 f32 () on cpu");
  const Tensor t = Tensor::arange(context, 0, 12, 1, DType::i32);
  EXPECT_EQ(text(t.view().reshape(Shape{3, 4})),
            "[[ 0,  1,  2,  3],\n"
            " [ 4,  5,  6,  7],\n"
            " [ 8,  9, 10, 11]] i32 (3, 4) on cpu");
  EXPECT_EQ(text(t.view().reshape(Shape{2, 2, 3})),
            "[[[ 0,  1,  2],\n"
            "  [ 3,  4,  5]],\n"
            "\n"
            " [[ 6,  7,  8],\n"
            "  [ 9, 10, 11]]] i32 (2, 2, 3) on cpu");
  EXPECT_EQ(text(Tensor::ones(context, Shape{1, 1, 1, 1, 1, 1, 1, 2}, DType::u8)),
            "[[[[[[[[1, 1]]]]]]]] u8 (1, 1, 1, 1, 1, 1, 1, 2) on cpu");
}

TEST(Print, NothingInIt) {
  CpuContext context;
  EXPECT_EQ(text(Tensor::empty(context, Shape{0}, DType::f32)), "[] f32 (0) on cpu");
  EXPECT_EQ(text(Tensor::empty(context, Shape{3, 0, 2}, DType::u8)), "[] u8 (3, 0, 2) on cpu");
}

TEST(Print, StridedViews) {
  CpuContext context;
  const Tensor t = Tensor::arange(context, 0, 6, 1, DType::i32);
  const TensorView matrix = t.view().reshape(Shape{2, 3});
  EXPECT_EQ(text(matrix.permute({1, 0})), "[[0, 3],\n [1, 4],\n [2, 5]] i32 (3, 2) on cpu");
  EXPECT_EQ(text(matrix.slice(1, 1, 3)), "[[1, 2],\n [4, 5]] i32 (2, 2) on cpu");
  EXPECT_EQ(text(TensorView(t.view().data, DType::i32, Device::cpu(), Shape{2, 3}, Strides{0, 1})),
            "[[0, 1, 2],\n [0, 1, 2]] i32 (2, 3) on cpu");
  auto* last = t.view().span<std::int32_t>().data() + 5;
  EXPECT_EQ(text(TensorView(last, DType::i32, Device::cpu(), Shape{3}, Strides{-2})), "[5, 3, 1] i32 (3) on cpu");
}

TEST(Print, Summaries) {
  CpuContext context;
  EXPECT_EQ(text(Tensor::arange(context, 0, 1001, 1, DType::i32)),
            "[   0,    1,    2, ...,  998,  999, 1000] i32 (1001) on cpu");
  // At the threshold of 1000 elements, all elements are printed.
  EXPECT_EQ(text(Tensor::arange(context, 0, 1000, 1, DType::i32)).find("..."), std::string::npos);
  const PrintOptions few{.edge_items = 1, .threshold = 5};
  const Tensor t = Tensor::arange(context, 0, 36, 1, DType::i32);
  EXPECT_EQ(text(t.view().reshape(Shape{6, 6}), few),
            "[[ 0, ...,  5],\n"
            " ...,\n"
            " [30, ..., 35]] i32 (6, 6) on cpu");
  // Axes of at most two times edge_items elements are printed completely.
  EXPECT_EQ(text(t.view().reshape(Shape{3, 2, 6}), few),
            "[[[ 0, ...,  5],\n"
            "  [ 6, ..., 11]],\n"
            "\n"
            " ...,\n"
            "\n"
            " [[24, ..., 29],\n"
            "  [30, ..., 35]]] i32 (3, 2, 6) on cpu");
  EXPECT_EQ(text(t, {.edge_items = 20, .threshold = 0}).find("..."), std::string::npos);
  // Printing must not read elements that it does not show. One view is transposed, the other has stride 0 and more
  // elements than memory could hold.
  EXPECT_EQ(text(t.view().reshape(Shape{6, 6}).permute({1, 0}), few),
            "[[ 0, ..., 30],\n"
            " ...,\n"
            " [ 5, ..., 35]] i32 (6, 6) on cpu");
  EXPECT_EQ(text(TensorView(t.view().data, DType::i32, Device::cpu(), Shape{std::int64_t{1} << 40, 2}, Strides{0, 1})),
            "[[0, 1],\n [0, 1],\n [0, 1],\n ...,\n [0, 1],\n [0, 1],\n [0, 1]] i32 (1099511627776, 2) on cpu");
}

TEST(Print, LongRowsGoOnInTheNextLine) {
  CpuContext context;
  const Tensor t = Tensor::arange(context, 0, 10, 1, DType::i32);
  EXPECT_EQ(text(t, {.line_width = 12}), "[0, 1, 2, 3,\n 4, 5, 6, 7,\n 8, 9] i32 (10) on cpu");
  EXPECT_EQ(text(t.view().reshape(Shape{2, 5}), {.line_width = 12}),
            "[[0, 1, 2,\n  3, 4],\n [5, 6, 7,\n  8, 9]] i32 (2, 5) on cpu");
  EXPECT_EQ(text(t.view().slice(0, 0, 2), {.line_width = 1}), "[0,\n 1] i32 (2) on cpu");
}

TEST(Print, WaitsForTheContext) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  for (int i = 0; i < 20; ++i) {
    const Tensor t = Tensor::full(context, Shape{3}, i, DType::i32);
    EXPECT_EQ(to_string(context, t).front(), '[');
    EXPECT_NE(to_string(context, t).find(std::to_string(i)), std::string::npos);
  }
}

TEST(Print, Refuses) {
  CpuContext context;
  const Tensor t = Tensor::ones(context, Shape{2}, DType::f32);
  EXPECT_THROW(static_cast<void>(text(t, {.precision = -1})), UsageError);
  EXPECT_THROW(static_cast<void>(text(t, {.precision = 18})), UsageError);
  EXPECT_THROW(static_cast<void>(text(t, {.edge_items = 0})), UsageError);
  EXPECT_THROW(static_cast<void>(text(t, {.threshold = -1})), UsageError);
  EXPECT_THROW(static_cast<void>(text(t, {.line_width = 0})), UsageError);
  EXPECT_THROW(static_cast<void>(text(TensorView(nullptr, DType::f32, Device::cpu(), Shape{2}))), ShapeError);
  EXPECT_THROW(static_cast<void>(text(TensorView())), ShapeError);
  EXPECT_EQ(error_of<DeviceError>(
                [&] { static_cast<void>(text(TensorView(nullptr, DType::f32, Device::cuda(1), Shape{2}))); }),
            "to_string: the tensor is on cuda:1, the context on cpu, expected both on one device");
}

}  // namespace
}  // namespace lockstep::testing
