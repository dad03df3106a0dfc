#include <lockstep/runtime/tensor/copy.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <lockstep/runtime/detail/copy_loops.hpp>

#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::testing {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                          DType::u8,  DType::i32, DType::i64,  DType::u64};

/// Copies, then compares element by element with a conversion through double. The values must be exact in double.
void check(Context& context, const TensorView& src, const TensorView& dst) {
  copy(context, src, dst);
  context.synchronize();
  std::vector<double> expected = to_doubles(src);
  GuardedTensor converted(dst.shape, dst.dtype);
  converted.assign(expected);
  EXPECT_EQ(to_doubles(dst), converted.values()) << src << src.strides << " -> " << dst << dst.strides;
}

/// Fills the tensor with random numbers from -100 to 100. If its type or `other` is u8 or u64, the numbers are from 0
/// to 100.
void fill(GuardedTensor& tensor, DType other) {
  const bool without_sign = tensor.view().dtype == DType::u8 || tensor.view().dtype == DType::u64 ||
                            other == DType::u8 || other == DType::u64;
  tensor.uniform(7, without_sign ? 0 : -100, 100);
}

TEST(Copy, EveryPairOfTypesContiguousAndStrided) {
  CpuContext context({.threads = 2});
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      const Shape shape{3, 5, 7};
      GuardedTensor src(shape, from);
      fill(src, to);
      GuardedTensor dst(shape, to);
      check(context, src, dst);
      EXPECT_EQ(dst.check(), "");

      GuardedTensor turned(Shape{7, 3, 5}, to);
      check(context, src, turned.view().permute({1, 2, 0}));
      EXPECT_EQ(turned.check(), "");
      check(context, src.view().permute({2, 0, 1}), turned);
      EXPECT_EQ(turned.check(), "");
    }
  }
}

TEST(Copy, ConversionsByHand) {
  CpuContext context;
  std::vector<double> src{2.75, -2.75, 1e10, -0.0, std::nan(""), HUGE_VAL};
  std::vector<float> f32(6);
  copy(context, TensorView(std::span(src), Shape{6}), TensorView(std::span(f32), Shape{6}));
  EXPECT_EQ(f32[0], 2.75F);
  EXPECT_EQ(f32[2], 1e10F);
  EXPECT_TRUE(std::signbit(f32[3]));
  EXPECT_TRUE(std::isnan(f32[4]));
  EXPECT_EQ(f32[5], HUGE_VALF);
  std::vector<std::int32_t> i32(2);
  copy(context, TensorView(std::span(src), Shape{6}).slice(0, 0, 2), TensorView(std::span(i32), Shape{2}));
  EXPECT_EQ(i32, (std::vector<std::int32_t>{2, -2}));  // rounded toward zero
  std::vector<std::uint16_t> bits(6);
  copy(context, TensorView(std::span(f32), Shape{6}), TensorView(bits.data(), DType::f16, Device::cpu(), Shape{6}));
  EXPECT_EQ(bits[0], 0x4180);
  EXPECT_EQ(bits[1], 0xc180);
  EXPECT_EQ(bits[2], 0x7c00);  // infinity, after an overflow
  EXPECT_EQ(bits[3], 0x8000);
  EXPECT_EQ(bits[5], 0x7c00);
  std::vector<std::int64_t> i64{(std::int64_t{1} << 53) + 1, -1};
  std::vector<std::uint64_t> u64(2);
  copy(context, TensorView(std::span(i64), Shape{2}), TensorView(std::span(u64), Shape{2}));
  EXPECT_EQ(u64, (std::vector<std::uint64_t>{(std::uint64_t{1} << 53) + 1, ~std::uint64_t{0}}));
}

template <class From, class To>
std::vector<To> converted(std::vector<From> src) {
  CpuContext context;
  std::vector<To> dst(src.size(), To{77});
  const Shape shape{static_cast<std::int64_t>(src.size())};
  copy(context, TensorView(std::span(src), shape), TensorView(std::span(dst), shape));
  return dst;
}

template <class From>
void check_integers_out_of_range() {
  const From inf = std::numeric_limits<From>::infinity();
  const std::vector<From> src{inf, From(1e30), -inf, From(-1e30), std::numeric_limits<From>::quiet_NaN(), From(-1.5)};
  EXPECT_EQ((converted<From, std::uint8_t>(src)), (std::vector<std::uint8_t>{255, 255, 0, 0, 0, 0}));
  constexpr std::int32_t kMin32 = -2147483647 - 1;
  EXPECT_EQ((converted<From, std::int32_t>(src)),
            (std::vector<std::int32_t>{2147483647, 2147483647, kMin32, kMin32, 0, -1}));
  constexpr std::int64_t kMin64 = -9223372036854775807LL - 1;
  EXPECT_EQ((converted<From, std::int64_t>(src)),
            (std::vector<std::int64_t>{9223372036854775807LL, 9223372036854775807LL, kMin64, kMin64, 0, -1}));
  EXPECT_EQ((converted<From, std::uint64_t>(src)),
            (std::vector<std::uint64_t>{~std::uint64_t{0}, ~std::uint64_t{0}, 0, 0, 0, 0}));
  // Values at the limits: 2^31 and 2^63 are one too large and become the largest integer. The next smaller floats are
  // exact.
  EXPECT_EQ((converted<From, std::uint8_t>({255, From(255.5), 256, 254})),
            (std::vector<std::uint8_t>{255, 255, 255, 254}));
  EXPECT_EQ((converted<From, std::int32_t>({From(2147483648.0), From(2147483520.0), From(-2147483648.0)})),
            (std::vector<std::int32_t>{2147483647, 2147483520, kMin32}));
  EXPECT_EQ((converted<From, std::int64_t>({From(9223372036854775808.0), From(9223371487098961920.0)})),
            (std::vector<std::int64_t>{9223372036854775807LL, 9223371487098961920LL}));
  EXPECT_EQ((converted<From, std::uint64_t>({From(18446744073709551616.0), From(9223372036854775808.0)})),
            (std::vector<std::uint64_t>{~std::uint64_t{0}, std::uint64_t{1} << 63}));
}

TEST(Copy, FloatingToIntegerStopsAtTheRange) {
  check_integers_out_of_range<float>();
  check_integers_out_of_range<double>();
  EXPECT_EQ((converted<double, std::int32_t>({2147483647.9, -2147483648.9})),
            (std::vector<std::int32_t>{2147483647, -2147483647 - 1}));
  CpuContext context;
  GuardedTensor half(Shape{4}, DType::f16);
  half.assign({HUGE_VAL, -HUGE_VAL, std::nan(""), 300});
  GuardedTensor bytes(Shape{4}, DType::u8);
  copy(context, half, bytes);
  EXPECT_EQ(bytes.values(), (std::vector<double>{255, 0, 0, 255}));
}

TEST(Copy, SameTypeKeepsTheBits) {
  CpuContext context;
  GuardedTensor src(Shape{5, 3}, DType::f32);  // poison: NaN with all bits set
  GuardedTensor dst(Shape{3, 5}, DType::f32);
  dst.constant(0);
  copy(context, src, dst.view().permute({1, 0}));
  expect_same_bits(dst.view().reshape(Shape{15}), src.view().reshape(Shape{15}));
}

TEST(Copy, StridesOfEveryKind) {
  CpuContext context({.threads = 2});
  GuardedTensor memory(Shape{4, 6, 5}, DType::f32);
  memory.normal(1);
  GuardedTensor out(Shape{4, 6, 5}, DType::f32);
  float* data = memory.span<float>().data();
  const auto view = [&](void* start, const Shape& shape, const Strides& strides) {
    return TensorView(start, DType::f32, Device::cpu(), shape, strides);
  };
  float* target = out.span<float>().data();
  // Copies from views that are reversed, broadcast, strided, or a slice in the middle. Also copies to reversed and
  // strided views.
  check(context, view(data + 119, Shape{4, 6, 5}, Strides{-30, -5, -1}), out);
  check(context, view(data + 3, Shape{4, 6, 5}, Strides{0, 5, 0}), out);
  check(context, view(data, Shape{2, 3, 5}, Strides{60, 10, 1}), view(target, Shape{2, 3, 5}, Strides{15, 5, 1}));
  check(context, memory.view().slice(1, 2, 4), out.view().slice(1, 1, 3));
  check(context, memory, view(target + 119, Shape{4, 6, 5}, Strides{-30, -5, -1}));
  check(context, memory.view().slice(2, 0, 1), out.view().slice(2, 4, 5));
  check(context, memory.view().reshape(Shape{120}).slice(0, 7, 8), out.view().reshape(Shape{120}).slice(0, 9, 10));
  check(context, view(data, Shape{}, Strides{}), view(target, Shape{}, Strides{}));
  check(context, memory.view().reshape(Shape{1, 4, 1, 30, 1}), out.view().reshape(Shape{1, 4, 1, 30, 1}));
  EXPECT_EQ(out.check(), "");
}

TEST(Copy, OnlyTheViewIsWritten) {
  CpuContext context;
  GuardedTensor src(Shape{2, 3}, DType::i32);
  src.constant(7);
  GuardedTensor dst(Shape{4, 5}, DType::i32);
  dst.constant(1);
  copy(context, src, dst.view().slice(0, 1, 3).slice(1, 2, 5));
  EXPECT_EQ(dst.values(), (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 1, 1, 7, 7, 7, 1, 1, 1, 1, 1}));
}

TEST(Copy, LargerThanAThreadsShare) {
  for (const int threads : {1, 2, 3}) {
    CpuContext context({.threads = threads});
    GuardedTensor src(Shape{101, 71, 83}, DType::f32);
    src.normal(3);
    GuardedTensor dst(Shape{101, 71, 83}, DType::f32);
    copy(context, src, dst);
    expect_same_bits(dst, src);
    EXPECT_EQ(dst.check(), "");
    GuardedTensor turned(Shape{83, 101, 71}, DType::f32);
    check(context, src.view().permute({2, 0, 1}), turned);
    EXPECT_EQ(turned.check(), "");
    GuardedTensor narrow(Shape{101, 71, 83}, DType::bf16);
    check(context, src, narrow);
    EXPECT_EQ(narrow.check(), "");
  }
}

/// Copies of 16 MiB and more use stores that bypass the caches. These stores write 64 bytes at a time and begin at a
/// 16-byte boundary.
TEST(Copy, LargeCopiesFromAndToAnyAddress) {
  constexpr std::int64_t kBytes = (std::int64_t{16} << 20) + 77;
  std::vector<std::uint8_t> src(kBytes + 64);
  for (std::size_t i = 0; i < src.size(); ++i) {
    src[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
  }
  std::vector<std::uint8_t> dst(src.size());
  for (const int threads : {1, 3}) {
    for (const auto& [from, to] : {std::pair{0, 0}, {1, 16}, {3, 15}}) {
      for (const std::int64_t bytes : {kBytes, (std::int64_t{16} << 20) - 1}) {
        CpuContext context({.threads = threads});
        std::fill(dst.begin(), dst.end(), std::uint8_t{0xEE});
        copy(context, TensorView(src.data() + from, DType::u8, Device::cpu(), Shape{bytes}),
             TensorView(dst.data() + to, DType::u8, Device::cpu(), Shape{bytes}));
        ASSERT_EQ(std::memcmp(dst.data() + to, src.data() + from, static_cast<std::size_t>(bytes)), 0);
        const auto untouched = [](std::uint8_t byte) { return byte == 0xEE; };
        EXPECT_TRUE(std::all_of(dst.begin(), dst.begin() + to, untouched));
        EXPECT_TRUE(std::all_of(dst.begin() + to + bytes, dst.end(), untouched));
      }
    }
  }
}

TEST(Copy, WorkerStreamKeepsTheOrder) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  GuardedTensor a(Shape{1000}, DType::f32);
  GuardedTensor b(Shape{1000}, DType::f32);
  GuardedTensor c(Shape{1000}, DType::f64);
  a.normal(1);
  copy(context, a, b);
  copy(context, b, c);
  context.synchronize();
  EXPECT_EQ(c.values(), a.values());
}

TEST(Copy, CountsBytes) {
  CpuContext context;
  GuardedTensor src(Shape{10}, DType::f32);
  GuardedTensor dst(Shape{10}, DType::f32);
  copy(context, src, dst);
  copy(context, src.view().slice(0, 0, 5), dst.view().slice(0, 0, 5));
  EXPECT_EQ(context.copied().host_to_host, 60U);
  EXPECT_EQ(context.copied().host_to_device, 0U);
  EXPECT_EQ(context.copied().device_to_host, 0U);
  EXPECT_EQ(context.copied().device_to_device, 0U);
}

TEST(Copy, EmptyCopiesNothing) {
  CpuContext context;
  const TensorView nothing(nullptr, DType::f32, Device::cpu(), Shape{0, 3});
  EXPECT_NO_THROW(copy(context, nothing, nothing));
  EXPECT_EQ(context.copied().host_to_host, 0U);
}

TEST(Copy, LoopsAreAsFewAsTheStridesAllow) {
  const auto loops_of = [](const Shape& shape, const Strides& src, const Strides& dst) {
    const CopyLoops loops = make_copy_loops({nullptr, DType::f32, Device::cpu(), shape, src},
                                            {nullptr, DType::f32, Device::cpu(), shape, dst});
    std::vector<std::vector<std::int64_t>> rows;
    for (int axis = 0; axis < loops.rank; ++axis) {
      rows.push_back({loops.extent[axis], loops.src[axis], loops.dst[axis]});
    }
    return rows;
  };
  using Rows = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(loops_of({2, 3, 5}, {15, 5, 1}, {15, 5, 1}), (Rows{{30, 1, 1}}));
  EXPECT_EQ(loops_of({2, 3, 5}, {30, 10, 1}, {15, 5, 1}), (Rows{{6, 10, 5}, {5, 1, 1}})) << "part of every row";
  EXPECT_EQ(loops_of({2, 3, 5}, {15, 5, 1}, {1, 10, 2}), (Rows{{15, 1, 2}, {2, 15, 1}})) << "by dst's strides";
  EXPECT_EQ(loops_of({4, 1, 3}, {0, 7, 1}, {3, 9, 1}), (Rows{{4, 0, 3}, {3, 1, 1}})) << "broadcast";
  EXPECT_EQ(loops_of({1, 1}, {9, 9}, {9, 9}), (Rows{{1, 1, 1}}));
  EXPECT_EQ(loops_of({}, {}, {}), (Rows{{1, 1, 1}}));
}

TEST(Copy, Refuses) {
  CpuContext context;
  GuardedTensor memory(Shape{2, 3}, DType::f32);
  const TensorView view = memory;
  GuardedTensor other(Shape{2, 3}, DType::f32);
  EXPECT_THROW(copy(context, view, other.view().reshape(Shape{3, 2})), ShapeError);
  EXPECT_THROW(copy(context, view, view), ShapeError);
  GuardedTensor line(Shape{10}, DType::f32);
  EXPECT_THROW(copy(context, line.view().slice(0, 0, 6), line.view().slice(0, 4, 10)), ShapeError);
  EXPECT_NO_THROW(copy(context, line.view().slice(0, 0, 5), line.view().slice(0, 5, 10)));
  EXPECT_THROW(copy(context, view,
                    TensorView(other.span<float>().data(), DType::f32, Device::cpu(), Shape{2, 3}, Strides{0, 1})),
               ShapeError);
  EXPECT_THROW(copy(context, TensorView(nullptr, DType::f32, Device::cpu(), Shape{2, 3}), view), ShapeError);

  // An address between two elements is an error. The text names the address and the view.
  const auto between = [](const TensorView& good) {
    TensorView moved = good;
    moved.data = static_cast<std::byte*>(moved.data) + 2;
    return moved;
  };
  const auto refusal = [&](const TensorView& src, const TensorView& dst) {
    return error_of<ShapeError>([&] { copy(context, src, dst); });
  };
  const TensorView five = line.view().slice(0, 0, 5);
  const TensorView next = between(line.view().slice(0, 5, 9));
  const std::string source = refusal(next, five.slice(0, 0, 4));
  EXPECT_EQ(source.find("copy: src f32 (4) on cpu begins at address 0x"), 0U) << source;
  EXPECT_NE(source.find(", expected a multiple of the 4 bytes of its element"), std::string::npos) << source;
  const std::string target = refusal(five.slice(0, 0, 4), next);
  EXPECT_EQ(target.find("copy: dst f32 (4) on cpu begins at address 0x"), 0U) << target;
  EXPECT_NO_THROW(copy(context, TensorView(next.data, DType::bf16, Device::cpu(), Shape{4}), five.slice(0, 0, 4)));

  // The error names both devices.
  TensorView elsewhere = other;
  elsewhere.device = Device::cuda(0);
  for (const auto& [src, dst] : {std::pair{view, elsewhere}, {elsewhere, view}, {elsewhere, elsewhere}}) {
    expect_error<DeviceError>([&, from = src, to = dst] { copy(context, from, to); }, {"cuda:0", "cpu"});
  }
}

}  // namespace
}  // namespace lockstep::testing
