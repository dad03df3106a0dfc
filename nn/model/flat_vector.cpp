#include <lockstep/nn/model/flat_vector.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/batch/copy_across.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {
namespace {

/// Returns the number of elements of parameters in their logical shapes.
std::int64_t elements_of(std::span<const ParameterInfo> parameters) {
  std::int64_t elements = 0;
  for (const ParameterInfo& parameter : parameters) {
    elements += parameter.spec.dims.numel();
  }
  return elements;
}

/// Calls f(arena, slice) for each tensor of `part`. `arena` is the tensor's logical view in the set's arena. `slice` is
/// a view of the tensor's elements in `vector`, in the same shape. FlatPart::gradients skips frozen parameters, which
/// have no gradients.
template <class F>
void for_each(const ParameterSet& set, FlatPart part, const TensorView& vector, F&& f) {
  std::int64_t next = 0;
  const auto visit = [&](const TensorView& in_arena) {
    const Shape& shape = in_arena.shape;
    Strides strides = shape;
    std::int64_t step = vector.strides[0];
    for (int axis = shape.rank(); axis-- > 0; step *= shape[axis]) {
      strides[axis] = step;
    }
    auto* const data = static_cast<std::byte*>(vector.data) +
                       next * vector.strides[0] * static_cast<std::int64_t>(size_of(vector.dtype));
    f(in_arena, TensorView(data, vector.dtype, vector.device, shape, strides));
    next += shape.numel();
  };
  const bool gradients = part == FlatPart::gradients;
  const std::size_t count = gradients ? set.trainable().size() : set.parameters().size();
  for (std::size_t i = 0; i < count; ++i) {
    visit(set.logical(static_cast<int>(i), gradients ? set.gradients() : set.values()));
  }
  if (part == FlatPart::values_and_statistics) {
    for (std::size_t i = 0; i < set.buffers().size(); ++i) {
      const int index = static_cast<int>(i);
      visit(set.logical_buffer(index, set.evaluation_buffer(index)));
    }
  }
}

void require_fits(const ParameterSet& set, FlatPart part, const TensorView& vector, double factor) {
  const std::int64_t size = flat_size(set, part);
  require<ShapeError>(vector.shape == Shape{size}, "vector is ", vector.shape, ", expected one axis of ", size);
  require<DTypeError>(vector.dtype == DType::f32 || vector.dtype == DType::f64, "vector is ", vector.dtype,
                      ", expected f32 or f64");
  require<UsageError>(factor == 1 || part == FlatPart::gradients, "factor is ", factor, ", expected 1 for values");
  const Device device = set.values().device;
  if (vector.device != Device::cpu()) {
    require<DeviceError>(vector.device == device, "vector is on ", vector.device, ", expected host memory or ", device);
    require<DTypeError>(vector.dtype == set.dtype(), "vector is ", vector.dtype, " on ", device, ", expected ",
                        set.dtype(), " as the parameters");
    require<ShapeError>(vector.is_contiguous(), "vector has stride ", vector.strides[0], " on ", device,
                        ", expected 1");
  }
}

/// Sets each element x of a vector to f(x). The vector must be in host memory that no enqueued work uses.
template <class F>
void for_elements(const TensorView& vector, F&& f) {
  const auto apply = [&](auto* data) {
    for (std::int64_t i = 0; i < vector.numel(); ++i) {
      auto& element = data[i * vector.strides[0]];
      element = static_cast<std::remove_reference_t<decltype(element)>>(f(static_cast<double>(element)));
    }
  };
  vector.dtype == DType::f32 ? apply(static_cast<float*>(vector.data)) : apply(static_cast<double*>(vector.data));
}

/// Enqueues values = factor * values. `values` must be contiguous, on the context's device.
void multiply(Context& context, const TensorView& values, double factor) {
  const Buffer memory(size_of(values.dtype), context);
  std::optional<SyncGuard> idle;  // waits before `memory` is freed, because a worker may still read it
  if (context.device().kind == DeviceKind::cpu) {
    idle.emplace(context.stream());
  }
  const TensorView scalar(memory.data(), values.dtype, context.device(), Shape{});
  ops::fill(context, factor, scalar);
  ops::scale(context, scalar, values, values);
}

/// The destructor waits for the stream if the caller's vector is in host memory. `call` is the name of the function
/// that waits, for the text that reports the wait.
class WaitForHost {
 public:
  WaitForHost(Context& context, const TensorView& vector, const char* call) {
    if (vector.device.kind == DeviceKind::cpu) {
      report_.emplace(context.stream(), call, SyncReason::host_data, vector.bytes());
      idle_.emplace(context.stream());
    }
  }

 private:
  std::optional<SyncScope> report_;
  std::optional<SyncGuard> idle_;
};

}  // namespace

std::int64_t flat_size(const ParameterSet& set, FlatPart part) {
  std::int64_t size = elements_of(set.parameters());
  if (part == FlatPart::values_and_statistics) {
    for (const BufferSpec& buffer : set.buffers()) {
      size += buffer.shape.numel();
    }
  }
  return size;
}

void read_flat(Context& context, const ParameterSet& set, FlatPart part, const TensorView& vector, double factor) {
  require_fits(set, part, vector, factor);
  const WaitForHost waits(context, vector, "read_flat");
  for_each(set, part, vector,
           [&](const TensorView& arena, const TensorView& slice) { copy_across(context, arena, slice); });
  if (part != FlatPart::gradients) {
    return;
  }
  const std::int64_t trained = elements_of(set.trainable());
  const TensorView frozen = vector.slice(0, trained, vector.numel());
  const TensorView gradients = vector.slice(0, 0, trained);
  if (vector.device.kind == DeviceKind::cpu) {
    context.synchronize();
    for_elements(frozen, [](double) { return 0; });
    for_elements(gradients, [factor](double x) { return factor == 0 ? 0 : x * factor; });
    return;
  }
  ops::fill(context, 0, factor == 0 ? vector : frozen);
  if (factor != 0 && factor != 1) {
    multiply(context, gradients, factor);
  }
}

void write_flat(Context& context, ParameterSet& set, FlatPart part, const TensorView& vector, double factor) {
  require_fits(set, part, vector, factor);
  const WaitForHost waits(context, vector, "write_flat");
  for_each(set, part, vector,
           [&](const TensorView& arena, const TensorView& slice) { copy_across(context, slice, arena); });
  if (part == FlatPart::gradients) {
    if (factor != 1) {
      multiply(context, set.gradients(), factor);
    }
    return;
  }
  set.round_weights(context);
  if (part == FlatPart::values_and_statistics && set.buffer_arena().numel() > 0) {
    ops::strided_copy(context, set.evaluation_buffer_arena(), set.buffer_arena());
    set.spread_statistics(context);
  }
}

}  // namespace lockstep::nn
