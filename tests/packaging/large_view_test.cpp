// Tests views whose distances between elements exceed a 32-bit number. The views need little memory, because the system
// allocates only pages that are touched.
#include <array>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <lockstep/lockstep.h>

namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kStep = (std::int64_t{1} << 31) + 5;  // step between rows, in elements

/// Memory for kRows rows of elements of type T, kStep elements apart.
template <class T>
struct Far {
  static constexpr std::size_t bytes = (kRows * kStep + 8) * sizeof(T);
  T* data =
      static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

  Far() = default;
  Far(const Far&) = delete;
  Far& operator=(const Far&) = delete;
  ~Far() {
    if (data != MAP_FAILED) {
      munmap(data, bytes);
    }
  }
};

TEST(LargeViews, RowsBeyond32BitsAreReadAndWrittenWhereTheyLie) {
  const Far<std::uint8_t> in;
  const Far<float> out;
  if (in.data == MAP_FAILED || out.data == MAP_FAILED) {
    GTEST_SKIP() << "the system gives no " << Far<float>::bytes << " bytes of address space";
  }
  lockstep_context context = nullptr;
  lockstep_model model = nullptr;
  const std::array<std::int64_t, 2> widths{2, 1};
  ASSERT_EQ(lockstep_context_create(nullptr, &context), LOCKSTEP_OK) << lockstep_last_error();
  ASSERT_EQ(lockstep_model_mlp(context, LOCKSTEP_F64, widths.data(), 2, LOCKSTEP_ACTIVATION_NONE, &model), LOCKSTEP_OK);
  ASSERT_EQ(lockstep_model_initialise(model, 1), LOCKSTEP_OK);
  std::array<double, 2> weight{1, 10};
  double bias = 0.5;
  const std::array<std::int64_t, 2> weight_shape{1, 2};
  const std::int64_t one = 1;
  const lockstep_view weights{weight.data(), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, weight_shape.data(), nullptr, nullptr};
  const lockstep_view biases{&bias, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, &one, nullptr, nullptr};
  ASSERT_EQ(lockstep_parameter_write(model, "1.weight", 0, &weights), LOCKSTEP_OK) << lockstep_last_error();
  ASSERT_EQ(lockstep_parameter_write(model, "1.bias", 0, &biases), LOCKSTEP_OK) << lockstep_last_error();

  for (std::int64_t row = 0; row < kRows; ++row) {
    in.data[row * kStep] = static_cast<std::uint8_t>(row + 1);
    in.data[row * kStep + 1] = static_cast<std::uint8_t>(7 - row);
  }
  const std::array<std::int64_t, 2> in_shape{kRows, 2};
  const std::array<std::int64_t, 2> out_shape{kRows, 1};
  const std::array<std::int64_t, 2> strides{kStep, 1};
  const lockstep_view from{in.data, LOCKSTEP_U8, LOCKSTEP_CPU, 0, 2, in_shape.data(), strides.data(), "nc"};
  const lockstep_view to{out.data, LOCKSTEP_F32, LOCKSTEP_CPU, 0, 2, out_shape.data(), strides.data(), "nc"};
  ASSERT_EQ(lockstep_infer(model, &from, &to, nullptr), LOCKSTEP_OK) << lockstep_last_error();
  for (std::int64_t row = 0; row < kRows; ++row) {
    const double expected = static_cast<double>(row + 1) + 10 * static_cast<double>(7 - row) + 0.5;
    EXPECT_EQ(out.data[row * kStep], static_cast<float>(expected)) << row;
    EXPECT_EQ(out.data[row * kStep + 1], 0) << row;  // this element is outside the view
  }
  EXPECT_EQ(lockstep_model_destroy(model), LOCKSTEP_OK);
  EXPECT_EQ(lockstep_context_destroy(context), LOCKSTEP_OK);
}

}  // namespace
