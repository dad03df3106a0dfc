#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

// Helpers with which the tests use the C interface as a host program does. These tests include no other part of
// lockstep.

namespace host {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Succeeds if a call has returned the status `expected`: EXPECT_TRUE(is(STATUS, call)). Fails also if an error has no
/// text, or if a success has a text. Shows the text.
inline ::testing::AssertionResult is(lockstep_status expected, lockstep_status status) {
  const std::string text = lockstep_last_error();
  if (status != expected || (status != LOCKSTEP_OK) == text.empty()) {
    return ::testing::AssertionFailure() << "status " << lockstep_status_name(status) << ", expected "
                                         << lockstep_status_name(expected) << "; last error: '" << text << "'";
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult ok(lockstep_status status) {
  return is(LOCKSTEP_OK, status);
}

/// Like is(), for an error whose text must contain each of `parts`.
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

/// A lockstep_view, together with the arrays to which it points.
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
  /// Returns the struct, whose pointers point into this object.
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

/// Owns a handle, and destroys it at the end.
template <class Handle, lockstep_status (*Destroy)(Handle) noexcept>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { EXPECT_TRUE(ok(Destroy(handle_))); }
  operator Handle() const { return handle_; }
  Handle* operator&() { return &handle_; }
  /// Returns the handle, which the caller must then destroy.
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};
using Context = Owned<lockstep_context, lockstep_context_destroy>;
using Comm = Owned<lockstep_comm, lockstep_comm_destroy>;
using Model = Owned<lockstep_model, lockstep_model_destroy>;
using Trainer = Owned<lockstep_trainer, lockstep_trainer_destroy>;

inline lockstep_context_options context_options() {
  lockstep_context_options options;
  EXPECT_TRUE(ok(lockstep_context_options_init(&options, sizeof options)));
  return options;
}

/// A context on the host with one thread.
struct HostContext : Context {
  explicit HostContext(const lockstep_allocator* memory = nullptr) {
    lockstep_context_options options = context_options();
    options.threads = 1;
    options.memory = memory;
    EXPECT_TRUE(ok(lockstep_context_create(&options, operator&())));
  }
};

/// A communicator of one rank.
struct SelfComm : Comm {
  explicit SelfComm(lockstep_context context) { EXPECT_TRUE(ok(lockstep_comm_self(context, operator&()))); }
};

/// A model without layers, for samples of shape `sample`.
struct NewModel : Model {
  NewModel(lockstep_context context, lockstep_dtype dtype, const std::vector<std::int64_t>& sample) {
    EXPECT_TRUE(ok(
        lockstep_model_create(context, dtype, sample.data(), static_cast<std::int32_t>(sample.size()), operator&())));
  }
};

/// An MLP whose parameters are not yet initialised.
struct BareMlp : Model {
  BareMlp(lockstep_context context, const std::vector<std::int64_t>& widths, lockstep_dtype dtype = LOCKSTEP_F64,
          std::int32_t activation = LOCKSTEP_ACTIVATION_TANH) {
    EXPECT_TRUE(ok(lockstep_model_mlp(context, dtype, widths.data(), static_cast<std::int32_t>(widths.size()),
                                      activation, operator&())));
  }
};

/// An MLP whose parameters are initialised from the seed.
struct Mlp : BareMlp {
  Mlp(lockstep_context context, const std::vector<std::int64_t>& widths, lockstep_dtype dtype = LOCKSTEP_F64,
      std::uint64_t seed = 1)
      : BareMlp(context, widths, dtype) {
    EXPECT_TRUE(ok(lockstep_model_initialise(*this, seed)));
  }
};

struct NewTrainer : Trainer {
  NewTrainer(lockstep_model model, lockstep_comm comm, const lockstep_trainer_options& options) {
    EXPECT_TRUE(ok(lockstep_trainer_create(model, comm, &options, operator&())));
  }
};

inline lockstep_trainer_options trainer_options(std::int64_t max_batch) {
  lockstep_trainer_options options;
  EXPECT_TRUE(ok(lockstep_trainer_options_init(&options, sizeof options)));
  options.max_batch = max_batch;
  return options;
}

/// Returns options for plain gradient descent: no momentum, no weight decay.
inline lockstep_trainer_options descent(std::int64_t max_batch) {
  lockstep_trainer_options options = trainer_options(max_batch);
  options.optimizer = LOCKSTEP_OPTIMIZER_SGD;
  options.momentum = 0;
  return options;
}

inline lockstep_layer_options layer_options(const std::function<void(lockstep_layer_options&)>& change = {}) {
  lockstep_layer_options options;
  EXPECT_TRUE(ok(lockstep_layer_options_init(&options, sizeof options)));
  if (change) {
    change(options);
  }
  return options;
}

/// Adds a layer that reads `node`, and sets `node` to the new layer.
inline void add_layer(lockstep_model model, const char* kind, const char* name, std::int32_t& node,
                      std::int64_t size = 0, const lockstep_layer_options* options = nullptr) {
  EXPECT_TRUE(ok(lockstep_model_add(model, kind, 0, name, 0, &node, 1, size, options, &node))) << kind;
}

inline lockstep_status infer(lockstep_model model, View in, View out, lockstep_stream stream = nullptr) {
  return lockstep_infer(model, &in, &out, stream);
}

inline lockstep_status add(lockstep_trainer trainer, View in, View target, const lockstep_view* weight = nullptr) {
  return lockstep_trainer_add(trainer, &in, &target, weight, nullptr);
}

/// Adds a batch of samples with one feature and one target each.
inline lockstep_status add(lockstep_trainer trainer, std::vector<double> x, std::vector<double> y) {
  return add(trainer, View(x.data(), {static_cast<std::int64_t>(x.size()), 1}),
             View(y.data(), {static_cast<std::int64_t>(y.size()), 1}));
}

/// Returns the loss of the last step. Writes the step's number to `step`.
inline double loss_of(lockstep_trainer trainer, std::int64_t* step = nullptr) {
  double loss = kNan;
  EXPECT_TRUE(ok(lockstep_trainer_loss(trainer, 1, &loss, step)));
  return loss;
}

inline lockstep_report report_of(lockstep_trainer trainer) {
  lockstep_report report{};
  report.struct_size = sizeof report;
  EXPECT_TRUE(ok(lockstep_trainer_report(trainer, &report)));
  return report;
}

/// Returns a path at which no file exists yet. The path contains the process id, so that concurrent tests do not
/// collide.
inline std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "lockstep_c_" + name + "_" + std::to_string(::getpid());
}

/// Returns a parameter's values, in the order of its logical shape.
inline std::vector<double> parameter(lockstep_model model, const char* name, std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= extent;
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  View view(values.data(), std::move(shape));
  EXPECT_TRUE(ok(lockstep_parameter_read(model, name, 0, &view)));
  return values;
}

inline lockstep_status write(lockstep_model model, const char* name, View values) {
  return lockstep_parameter_write(model, name, 0, &values);
}

/// Returns the i-th number of a sequence in (-1, 1). The numbers look random, and are equal on every machine.
inline double draw(std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return static_cast<double>((x ^ (x >> 31U)) >> 11U) * 0x1p-52 - 1;
}

/// Returns draw(from), draw(from + 1), ...
template <class T = double>
std::vector<T> drawn(std::size_t count, std::uint64_t from = 0) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(draw(from + i));
  }
  return values;
}

}  // namespace host
