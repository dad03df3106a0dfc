#include "tests/kernels/add_cases.hpp"

#include <array>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

TEST(Add, GoldenNumbers) {
  CpuContext context;
  std::array<float, 3> a{1, -2, 0.5F};
  std::array<float, 3> b{10, 2, 0.25F};
  std::array<float, 3> out{};
  ops::add(context, TensorView(std::span(a), {3}), TensorView(std::span(b), {3}), TensorView(std::span(out), {3}));
  EXPECT_EQ(out, (std::array<float, 3>{11, 0, 0.75F}));
}

TEST(Add, EveryElementIsTheSum) {
  for (const OpCase& item : add_cases()) {
    expect_matches(item, [&](Inputs in, Outputs expected) {
      visit_compute(item.dtype, "add", [&]<class T>(std::type_identity<T>) {
        const T* a = in[0].view().as<T>();
        const T* b = in[1].view().as<T>();
        T* out = expected[0].view().as<T>();
        for (std::int64_t i = 0; i < expected[0].view().numel(); ++i) {
          out[i] = a[i] + b[i];
        }
      });
    });
  }
}

TEST(Add, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(add_case(Shape{200003}, DType::f32));
}

TEST(Add, InPlace) {
  CpuContext context;
  std::array<double, 2> a{1, 2};
  std::array<double, 2> b{3, 4};
  const TensorView va{std::span(a), {2}};
  ops::add(context, va, TensorView(std::span(b), {2}), va);
  EXPECT_EQ(a, (std::array<double, 2>{4, 6}));
}

TEST(Add, BadInput) {
  CpuContext context;
  std::array<float, 8> a{};
  std::array<double, 4> d{};
  const TensorView whole{std::span(a), {8}};
  const TensorView front = whole.slice(0, 0, 4);
  const TensorView back = whole.slice(0, 4, 8);
  EXPECT_THROW(ops::add(context, front, back, whole), ShapeError);
  EXPECT_THROW(ops::add(context, front, front, whole.slice(0, 2, 6)), ShapeError) << "overlap";
  EXPECT_THROW(ops::add(context, front, TensorView(std::span(d), {4}), back), DTypeError);
  EXPECT_THROW(ops::add(context, front, with(front, &TensorView::strides, {2}), back), ShapeError);
  EXPECT_THROW(ops::add(context, front, with(front, &TensorView::device, Device::cuda(0)), back), DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
