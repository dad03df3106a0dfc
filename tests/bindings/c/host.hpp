#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

// A host program's side of the C interface, which is all that these tests know of lockstep.

namespace host {

/// EXPECT_TRUE(is(LOCKSTEP_OK, call)); the text of the failure is shown, and is there exactly when there is a failure.
inline ::testing::AssertionResult is(lockstep_status expected, lockstep_status status) {
  const std::string text = lockstep_last_error();
  if (status != expected || (status != LOCKSTEP_OK) == text.empty()) {
    return ::testing::AssertionFailure() << "status " << lockstep_status_name(status) << ", expected "
                                         << lockstep_status_name(expected) << "; last error: '" << text << "'";
  }
  return ::testing::AssertionSuccess();
}

/// The same for a failure whose text holds each of `parts`.
inline ::testing::AssertionResult fails(lockstep_status expected, lockstep_status status,
                                        const std::vector<std::string>& parts) {
  const ::testing::AssertionResult result = is(expected, status);
  if (!result) {
    return result;
  }
  const std::string text = lockstep_last_error();
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "the text is '" << text << "', expected '" << part << "' in it";
    }
  }
  return ::testing::AssertionSuccess();
}

template <class T>
constexpr lockstep_dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return LOCKSTEP_F32;
  } else if constexpr (std::is_same_v<T, double>) {
    return LOCKSTEP_F64;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return LOCKSTEP_I32;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return LOCKSTEP_I64;
  } else {
    static_assert(std::is_same_v<T, std::uint8_t>);
    return LOCKSTEP_U8;
  }
}

/// A view with the arrays that it points to.
class View {
 public:
  template <class T>
  View(T* data, std::vector<std::int64_t> shape, const char* axes = nullptr, std::vector<std::int64_t> strides = {})
      : shape_(std::move(shape)), strides_(std::move(strides)) {
    view_.data = const_cast<std::remove_const_t<T>*>(data);
    view_.dtype = dtype_of<std::remove_const_t<T>>();
    view_.device_type = LOCKSTEP_CPU;
    view_.device_id = 0;
    view_.axes = axes;
  }
  /// The struct; the pointers in it are this object's.
  const lockstep_view* operator&() { return get(); }
  lockstep_view* get() {
    view_.ndim = static_cast<std::int32_t>(shape_.size());
    view_.shape = shape_.data();
    view_.strides = strides_.empty() ? nullptr : strides_.data();
    return &view_;
  }

 private:
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  lockstep_view view_{};
};

/// A handle that is destroyed.
template <class Handle, lockstep_status (*Destroy)(Handle) noexcept>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { EXPECT_TRUE(is(LOCKSTEP_OK, Destroy(handle_))); }
  operator Handle() const { return handle_; }
  Handle* operator&() { return &handle_; }
  /// Gives it up without destroying it.
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};
using Context = Owned<lockstep_context, lockstep_context_destroy>;
using Comm = Owned<lockstep_comm, lockstep_comm_destroy>;
using Model = Owned<lockstep_model, lockstep_model_destroy>;
using Trainer = Owned<lockstep_trainer, lockstep_trainer_destroy>;

/// A context on the host with one thread.
inline void make_context(Context& context, const lockstep_allocator* memory = nullptr) {
  lockstep_context_options options;
  ASSERT_TRUE(is(LOCKSTEP_OK, lockstep_context_options_init(&options, sizeof options)));
  options.threads = 1;
  options.memory = memory;
  ASSERT_TRUE(is(LOCKSTEP_OK, lockstep_context_create(&options, &context)));
}

inline void make_mlp(lockstep_context context, Model& model, std::vector<std::int64_t> widths,
                     lockstep_dtype dtype = LOCKSTEP_F64, std::uint64_t seed = 1) {
  ASSERT_TRUE(
      is(LOCKSTEP_OK, lockstep_model_mlp(context, dtype, widths.data(), static_cast<std::int32_t>(widths.size()),
                                         LOCKSTEP_ACTIVATION_TANH, &model)));
  ASSERT_TRUE(is(LOCKSTEP_OK, lockstep_model_initialise(model, seed)));
}

inline lockstep_trainer_options trainer_options(std::int64_t max_batch) {
  lockstep_trainer_options options;
  EXPECT_TRUE(is(LOCKSTEP_OK, lockstep_trainer_options_init(&options, sizeof options)));
  options.max_batch = max_batch;
  return options;
}

/// A parameter's values, in the order of its logical shape.
inline std::vector<double> parameter(lockstep_model model, const char* name, std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  View view(values.data(), std::move(shape));
  EXPECT_TRUE(is(LOCKSTEP_OK, lockstep_parameter_read(model, name, 0, &view)));
  return values;
}

/// Numbers that follow no pattern, in (-1, 1), equal everywhere.
inline double draw(std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return static_cast<double>((x ^ (x >> 31U)) >> 11U) * 0x1p-52 - 1;
}

}  // namespace host
