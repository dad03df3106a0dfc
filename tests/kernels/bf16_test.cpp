// Compares every op on the host in bf16 with the same op in f32. The test cases are the bf16 cases of
// OP_device_cases(), and each op is one test.
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "cuda_op_cases.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {

void PrintTo(const CudaOp& op, std::ostream* out) {
  *out << op.name;
}

namespace {

std::vector<DeviceCase> bf16_cases(const CudaOp& op) {
  std::vector<DeviceCase> cases = op.cases();
  std::erase_if(cases, [](const DeviceCase& item) { return item.device.dtype != DType::bf16 || item.device.prepare; });
  return cases;
}

std::vector<CudaOp> bf16_ops() {
  std::vector<CudaOp> ops = cuda_ops();
  std::erase_if(ops, [](const CudaOp& op) { return bf16_cases(op).empty(); });
  return ops;
}

class Bf16 : public ::testing::TestWithParam<CudaOp> {};

TEST_P(Bf16, MatchesF32) {
  CpuContext context({.threads = 2});
  for (const DeviceCase& item : bf16_cases(GetParam())) {
    compare(item.device, context, item.host, context, item.tolerance);
  }
}

TEST_P(Bf16, HasTheSameBitsForAnyNumberOfThreads) {
  const std::vector<DeviceCase> cases = bf16_cases(GetParam());
  for (std::size_t i = 0; i < cases.size(); i += 3) {
    EXPECT_TRUE(same_bits_for_threads(cases[i].device, {1, 3}));
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Bf16, ::testing::ValuesIn(bf16_ops()),
                         [](const auto& instance) { return std::string(instance.param.name); });

/// Special numbers. A tensor of 67 elements repeats them, so each number is processed both in full vectors and in the
/// scalar loop for the last elements.
const std::vector<double> kNumbers{
    NAN,      std::numeric_limits<double>::infinity(),     -3, -std::numeric_limits<double>::infinity(), 0, -0.0,
    0x1p-133, 3.38953138925153547590470800371487866880e38,  // smallest and largest positive bf16 number
    -0x1p-133};

GuardedTensor numbers(std::size_t shift = 0) {
  std::vector<double> values;
  for (std::size_t i = 0; i < 67; ++i) {
    values.push_back(kNumbers[(i + shift) % kNumbers.size()]);
  }
  GuardedTensor tensor(Shape{67, 1}, DType::bf16, values);
  return tensor;
}

void expect_equal(const GuardedTensor& out, const std::function<double(std::size_t)>& expected) {
  const std::vector<double> values = out.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double wanted = expected(i);
    EXPECT_TRUE(std::isnan(wanted) ? std::isnan(values[i]) : values[i] == wanted) << i << ": " << values[i];
  }
}

TEST(Bf16Numbers, KeepNanInfinityAndSubnormals) {
  CpuContext context;
  const GuardedTensor x = numbers();
  const GuardedTensor other = numbers(2);
  GuardedTensor y(x.view().shape, DType::bf16);
  const std::vector<double> a = x.values();
  const std::vector<double> b = other.values();
  ASSERT_EQ(a[6], 0x1p-133);
  ASSERT_TRUE(std::isfinite(a[7]));

  ops::relu_forward(context, x, y);
  expect_equal(y, [&](std::size_t i) { return a[i] <= 0 ? 0 : a[i]; });
  ops::add(context, x, other, y);
  expect_equal(y, [&](std::size_t i) {
    return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(a[i] + b[i]))));
  });

  GuardedTensor coefficients(Shape{4, 1}, DType::f32, {1, 0, 0, 1});
  GuardedTensor mask(Shape{static_cast<std::int64_t>(ops::relu_mask_bytes(67))}, DType::u8);
  ops::batch_norm_apply(context, x, coefficients, {}, true, y, mask);
  expect_equal(y, [&](std::size_t i) { return a[i] <= 0 ? 0 : a[i]; });
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(mask.span<std::uint8_t>()[i / 8] >> (i % 8) & 1, a[i] > 0 ? 1 : 0) << i;
  }
}

/// Multiplies all 2^16 bf16 numbers by 1.5. Half of the products lie between two bf16 numbers, and many are exact ties.
/// Each product must be rounded to nearest even.
TEST(Bf16Numbers, RoundToNearestEvenInVectorsToo) {
  CpuContext context;
  GuardedTensor x(Shape{1 << 16}, DType::bf16);
  for (std::size_t i = 0; i < x.span<BFloat16>().size(); ++i) {
    x.span<BFloat16>()[i].bits = static_cast<std::uint16_t>(i);
  }
  GuardedTensor factor(Shape{}, DType::f32, testing::constant(1.5));
  GuardedTensor y(x.view().shape, DType::bf16);
  ops::scale(context, factor, x, y);
  int rounded = 0;
  for (std::size_t i = 0; i < x.span<BFloat16>().size(); ++i) {
    const float product = 1.5F * static_cast<float>(x.span<BFloat16>()[i]);
    const BFloat16 found = y.span<BFloat16>()[i];
    ASSERT_EQ(found.bits & 0x7fff, std::isnan(product) ? found.bits & 0x7fff : BFloat16(product).bits & 0x7fff) << i;
    ASSERT_EQ(std::isnan(static_cast<float>(found)), std::isnan(product)) << i;
    rounded += static_cast<float>(found) == product ? 0 : 1;
  }
  EXPECT_GT(rounded, 30000);
}

TEST(Bf16Numbers, SumsRunInF32) {
  // The sum of 300 ones must be 300. A sum in bf16 would stop at 256, because 256 + 1 rounds to 256.
  CpuContext context;
  GuardedTensor x(Shape{300, 1}, DType::bf16, testing::constant(1));
  GuardedTensor sums(Shape{1}, DType::f32);
  ops::reduce_rows(context, x, ops::GradMode::overwrite, sums, {});
  EXPECT_EQ(sums.values(), std::vector<double>{300});
  sums.constant(0.5);
  ops::reduce_rows(context, x, ops::GradMode::accumulate, sums, {});
  EXPECT_EQ(sums.values(), std::vector<double>{300.5});
}

TEST(Bf16Numbers, ParametersAreNotRounded) {
  CpuContext context;
  const GuardedTensor x(Shape{3}, DType::bf16);
  const GuardedTensor y(Shape{3}, DType::bf16);
  const GuardedTensor factor(Shape{1}, DType::f32);
  const GuardedTensor rounded(Shape{1}, DType::bf16);
  EXPECT_NO_THROW(ops::scale(context, factor, x, y));
  EXPECT_THROW(ops::scale(context, rounded, x, y), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing
