#include "tests/kernels/hash_cases.hpp"

#include <algorithm>
#include <set>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

std::uint64_t hash_of(const TensorView& x) {
  CpuContext context({.threads = 2});
  std::uint64_t result = 0;
  ops::hash_range(context, x, TensorView(std::span(&result, 1), Shape{}));
  return result;
}

std::uint64_t hash_of(std::vector<std::uint8_t> bytes) {
  return hash_of(TensorView(std::span(bytes), Shape{static_cast<std::int64_t>(bytes.size())}));
}

/// The generator SplitMix64 as published by its authors.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

TEST(Hash, ByHand) {
  // Published outputs of SplitMix64 for the seeds 0 and 1234567.
  constexpr std::uint64_t kFirstOf0 = 0xE220A8397B1DCDAF;
  constexpr std::uint64_t kFirstOf1234567 = 6457827717110365317U;
  constexpr std::uint64_t kSecondOf1234567 = 3203168211198807973U;
  EXPECT_EQ(SplitMix64(0).next(), kFirstOf0);
  EXPECT_EQ(hash_of(std::vector<std::uint8_t>{}), kFirstOf0);
  EXPECT_EQ(hash_of({0x87, 0xD6, 0x12}), SplitMix64(3).next() + kFirstOf1234567);
  EXPECT_EQ(hash_of({0, 0, 0, 0, 0, 0, 0, 0, 0x87, 0xD6, 0x12}), SplitMix64(11).next() + kFirstOf0 + kSecondOf1234567);
}

TEST(Hash, MatchesTheDefinition) {
  for (const OpCase& item : hash_cases()) {
    expect_matches(item, [&](Inputs in, Outputs expected) {
      const TensorView& x = in[0].view();
      const auto* bytes = static_cast<const std::uint8_t*>(x.data);
      std::uint64_t hash = SplitMix64(x.bytes()).next();
      std::uint64_t skipped = 0;  // sum of the generator's increments before the current word
      for (std::size_t i = 0; i < x.bytes(); i += 8) {
        std::uint64_t word = 0;
        for (std::size_t b = i; b < std::min(i + 8, x.bytes()); ++b) {
          word += std::uint64_t{bytes[b]} << 8 * (b - i);
        }
        hash += SplitMix64(word + skipped).next();
        skipped += 0x9E3779B97F4A7C15;
      }
      expected[0].span<std::uint64_t>()[0] = hash;
    });
  }
}

TEST(Hash, SeesEveryBitTheOrderAndTheLength) {
  std::set<std::uint64_t> hashes;
  std::size_t tried = 0;
  const auto add = [&](const std::vector<std::uint8_t>& bytes) {
    hashes.insert(hash_of(bytes));
    ++tried;
  };
  std::vector<std::uint8_t> bytes(45);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(3 * i + 1);
  }
  add(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::vector<std::uint8_t> changed = bytes;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    add(changed);
  }
  for (const std::ptrdiff_t word : {1, 2, 3, 4}) {  // index of the word that is swapped with the first word
    std::vector<std::uint8_t> changed = bytes;
    std::swap_ranges(changed.begin(), changed.begin() + 8, changed.begin() + 8 * word);
    add(changed);
  }
  for (std::size_t length = 0; length < 40; ++length) {
    add(std::vector<std::uint8_t>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
    add(std::vector<std::uint8_t>(length + 1));  // zeros
  }
  EXPECT_EQ(hashes.size(), tried);
  add(bytes);
  EXPECT_EQ(hashes.size(), tried - 1) << "the same bytes";
}

TEST(Hash, IsOneOfTheBytesWhateverTheyAre) {
  GuardedTensor x(Shape{6, 4}, DType::f32, normal(1));
  const std::uint64_t expected = hash_of(x);
  EXPECT_EQ(hash_of(x.view().reshape(Shape{2, 3, 4})), expected);
  for (const DType dtype : {DType::u8, DType::bf16, DType::i64}) {
    const auto count = static_cast<std::int64_t>(x.view().bytes() / size_of(dtype));
    EXPECT_EQ(hash_of(TensorView(x.view().data, dtype, Device::cpu(), Shape{count})), expected) << dtype;
  }
  std::vector<std::uint8_t> elsewhere(x.view().bytes() + 3);
  std::copy_n(static_cast<const std::uint8_t*>(x.view().data), x.view().bytes(), elsewhere.begin() + 3);
  EXPECT_EQ(hash_of(TensorView(elsewhere.data() + 3, DType::u8, Device::cpu(), Shape{96})), expected);
}

TEST(Hash, TheSameForAnyNumberOfThreads) {
  expect_same_bits_for_threads(hash_case({1000003}, DType::u8));
}

TEST(Hash, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor x(Shape{4, 4}, DType::u64, constant(1)), result(Shape{}, DType::u64);
  const auto call = [&](const TensorView& in, const TensorView& out) { ops::hash_range(context, in, out); };
  EXPECT_NO_THROW(call(x, result));
  EXPECT_NO_THROW(call(x.view().slice(0, 1, 4), x.view().slice(0, 0, 1).slice(1, 3, 4))) << "right next to it";
  EXPECT_THROW(call({}, result), ShapeError);
  EXPECT_THROW(call(x, {}), ShapeError);
  EXPECT_THROW(call(x, x.view().slice(0, 2, 3).slice(1, 0, 1)), ShapeError) << "in x";
  EXPECT_THROW(call(x.view().permute({1, 0}), result), ShapeError);
  EXPECT_THROW(call(x, GuardedTensor(Shape{2}, DType::u64)), ShapeError);
  EXPECT_THROW(call(x, GuardedTensor(Shape{}, DType::i64)), DTypeError);
  EXPECT_THROW(call(TensorView(x.view().data, DType::u64, Device::cuda(0), Shape{16}), result), DeviceError);
  EXPECT_THROW(call(x, TensorView(result.view().data, DType::u64, Device::cuda(0), Shape{})), DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
