#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/context/parallel.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep {
namespace {

// Elements per thread: at most n / kGrain threads, rounded up, compute the n elements of a tensor.
constexpr std::int64_t kGrain = 1 << 14;
// Size of the pieces in which the host computes a GPU's tensor, in bytes.
constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

/// Returns the largest finite value of T. For integer types, returns the first value above the range instead, because
/// f64 represents this value exactly.
template <class T>
double end_of() {
  if constexpr (std::is_integral_v<T>) {
    return std::ldexp(1.0, std::numeric_limits<T>::digits);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return 65504;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return 0x1.FEp127;
  } else {
    return static_cast<double>(std::numeric_limits<T>::max());
  }
}

/// Returns the number of bits of T's significand.
template <class T>
constexpr int digits_of() {
  if constexpr (std::is_same_v<T, Float16>) {
    return 11;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return 8;
  } else {
    return std::numeric_limits<T>::digits;
  }
}

template <class T>
T element(double value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void require_fits(std::string_view op, double value) {
  if constexpr (std::is_integral_v<T>) {
    require<UsageError>(std::trunc(value) == value && value >= static_cast<double>(std::numeric_limits<T>::min()) &&
                            value < end_of<T>(),
                        op, ": value is ", value, ", expected a whole number that ", dtype_of<T>, " can hold");
  } else {
    require<UsageError>(!std::isfinite(value) || std::abs(value) <= end_of<T>(), op, ": value is ", value,
                        ", expected one that ", dtype_of<T>, " can hold");
  }
}

// These functors compute elements [begin, end) by operator()(begin, end, out); `out` points to element `begin`.

template <class T>
struct Constant {
  T value;
  void operator()(std::int64_t begin, std::int64_t end, T* out) const { std::fill_n(out, end - begin, value); }
};

template <class T>
struct Progression {
  double first;
  double step;
  void operator()(std::int64_t begin, std::int64_t end, T* out) const {
    for (std::int64_t i = begin; i < end; ++i) {
      *out++ = element<T>(first + static_cast<double>(i) * step);
    }
  }
};

template <class T>
struct Diagonal {
  std::int64_t rows;
  std::int64_t columns;
  void operator()(std::int64_t begin, std::int64_t end, T* out) const {
    std::fill_n(out, end - begin, T{});
    const std::int64_t step = columns + 1;
    for (std::int64_t k = (begin + step - 1) / step; k < std::min(rows, columns) && k * step < end; ++k) {
      out[k * step - begin] = element<T>(1);
    }
  }
};

/// Makes uniform numbers: each Philox block of four words gives two elements.
struct Blocks {
  std::array<std::uint32_t, 2> key;
  std::uint32_t b;
  [[nodiscard]] std::array<double, 2> uniform(std::int64_t block) const {
    const auto count = static_cast<std::uint64_t>(block);
    const auto words = philox({static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(count >> 32), b, 0}, key);
    return {uniform_of(words[0], words[1]), uniform_of(words[2], words[3])};
  }
};

/// Writes elements [begin, end) of a tensor to `out`. pair(block) returns the elements 2 * block and 2 * block + 1.
template <class T, class Pair>
void take_pairs(std::int64_t begin, std::int64_t end, T* out, Pair&& pair) {
  while (begin < end) {
    const auto values = pair(begin / 2);
    for (auto half = static_cast<std::size_t>(begin % 2); half < 2 && begin < end; ++half, ++begin) {
      *out++ = element<T>(values[half]);
    }
  }
}

template <class T>
struct Uniform {
  Blocks blocks;
  void operator()(std::int64_t begin, std::int64_t end, T* out) const {
    const double scale = std::ldexp(1.0, digits_of<T>());
    take_pairs(begin, end, out, [&](std::int64_t block) {
      auto values = blocks.uniform(block);
      for (double& value : values) {
        value = std::trunc(value * scale) / scale;
      }
      return values;
    });
  }
};

template <class T>
struct Normal {
  Blocks blocks;
  void operator()(std::int64_t begin, std::int64_t end, T* out) const {
    take_pairs(begin, end, out, [&](std::int64_t block) {
      const auto values = blocks.uniform(block);
      return normal_of(values[0], values[1]);
    });
  }
};

/// Makes a tensor whose elements come from `fill`. `call` is the factory's name.
template <class T, class Fill>
Tensor made(std::string_view call, Context& context, const Shape& shape, const Fill& fill) {
  const std::int64_t count = shape.numel();
  // Only this lambda calls `fill`. So the tensors of hosts and GPUs come from the same machine code and have the same
  // bits.
  const auto run = [fill](const CpuContext& host, std::int64_t first, std::int64_t last, T* out) {
    parallel_ranges(host, last - first, kGrain,
                    [&](std::int64_t begin, std::int64_t end) { fill(first + begin, first + end, out + begin); });
  };
  if (count == 0) {
    return Tensor::empty(context, shape, dtype_of<T>);
  }
  if (context.device().kind == DeviceKind::cpu) {
    const auto& host = static_cast<const CpuContext&>(context);
    Tensor tensor = Tensor::empty(context, shape, dtype_of<T>);
    // The task shares ownership of the memory, because the tensor may be destroyed before a worker runs the task.
    context.stream().enqueue([run, &host, count, tensor] { run(host, 0, count, tensor.view().as<T>()); });
    return tensor;
  }
  const SyncScope scope(context.stream(), call, SyncReason::host_data, static_cast<std::size_t>(count) * sizeof(T));
  Tensor tensor = Tensor::empty(context, shape, dtype_of<T>);
  CpuContext host;
  const std::int64_t piece = std::min<std::int64_t>(count, kPieceBytes / static_cast<std::int64_t>(sizeof(T)));
  const Tensor staging = Tensor::empty(host, Shape{piece}, dtype_of<T>);
  const TensorView flat = tensor.view().reshape(Shape{count});
  for (std::int64_t begin = 0; begin < count; begin += piece) {
    const std::int64_t end = std::min(count, begin + piece);
    run(host, begin, end, staging.view().as<T>());
    copy(context, staging.view().slice(0, 0, end - begin), flat.slice(0, begin, end));
    context.synchronize();  // waits, because the next piece reuses the staging memory
  }
  return tensor;
}

template <template <class> class Fill>
Tensor drawn(std::string_view op, Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
             std::uint64_t sequence, std::uint32_t b) {
  require<DTypeError>(is_floating(dtype), op, ": dtype is ", dtype, ", expected f32, f64, bf16 or f16");
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) -> Tensor {
    if constexpr (std::is_integral_v<T>) {
      return {};
    } else {
      return made<T>(op, context, shape, Fill<T>{{random_key(seed, RandomUse::tensor, sequence), b}});
    }
  });
}

}  // namespace

Tensor Tensor::ones(Context& context, const Shape& shape, DType dtype) {
  return full(context, shape, 1, dtype);
}

Tensor Tensor::full(Context& context, const Shape& shape, double value, DType dtype) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    require_fits<T>("full", value);
    return made<T>("full", context, shape, Constant<T>{element<T>(value)});
  });
}

Tensor Tensor::arange(Context& context, double begin, double end, double step, DType dtype) {
  require<UsageError>(std::isfinite(begin) && std::isfinite(end) && std::isfinite(step) && step != 0, "arange: from ",
                      begin, " to ", end, " in steps of ", step, ", expected finite numbers and a step that is not 0");
  const double steps = std::ceil((end - begin) / step);
  require<UsageError>((end - begin) / step >= 0, "arange: from ", begin, " to ", end, ", a step of ", step,
                      " leads away from the end, expected one towards it");
  require<ShapeError>(steps < 0x1p53, "arange: from ", begin, " to ", end, " in steps of ", step,
                      " has 2^53 elements or more, expected fewer");
  const auto count = static_cast<std::int64_t>(steps);
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    if (count > 0) {
      const double last = begin + static_cast<double>(count - 1) * step;
      require_fits<T>("arange", begin);
      require_fits<T>("arange", last);
      if constexpr (std::is_integral_v<T>) {
        require<UsageError>(std::trunc(step) == step, "arange: step is ", step, ", expected a whole number for ",
                            dtype_of<T>);
        require<UsageError>(std::max(std::abs(begin), std::abs(last)) <= 0x1p53, "arange: from ", begin, " to ", end,
                            ", expected whole numbers up to 2^53");
      }
    }
    return made<T>("arange", context, Shape{count}, Progression<T>{begin, step});
  });
}

Tensor Tensor::eye(Context& context, std::int64_t rows, std::int64_t columns, DType dtype) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    return made<T>("eye", context, Shape{rows, columns}, Diagonal<T>{rows, columns});
  });
}

Tensor Tensor::rand(Context& context, const Shape& shape, DType dtype, std::uint64_t seed, std::uint64_t sequence) {
  return drawn<Uniform>("rand", context, shape, dtype, seed, sequence, 0);
}

Tensor Tensor::randn(Context& context, const Shape& shape, DType dtype, std::uint64_t seed, std::uint64_t sequence) {
  return drawn<Normal>("randn", context, shape, dtype, seed, sequence, 1);
}

Tensor Tensor::empty_like(Context& context, const TensorView& view) {
  return empty(context, view.shape, view.dtype);
}
Tensor Tensor::zeros_like(Context& context, const TensorView& view) {
  return zeros(context, view.shape, view.dtype);
}
Tensor Tensor::ones_like(Context& context, const TensorView& view) {
  return ones(context, view.shape, view.dtype);
}
Tensor Tensor::full_like(Context& context, const TensorView& view, double value) {
  return full(context, view.shape, value, view.dtype);
}
Tensor Tensor::rand_like(Context& context, const TensorView& view, std::uint64_t seed, std::uint64_t sequence) {
  return rand(context, view.shape, view.dtype, seed, sequence);
}
Tensor Tensor::randn_like(Context& context, const TensorView& view, std::uint64_t seed, std::uint64_t sequence) {
  return randn(context, view.shape, view.dtype, seed, sequence);
}

}  // namespace lockstep
