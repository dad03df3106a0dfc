#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/support/guarded.hpp"

namespace lockstep::testing {

struct TensorSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  Generator start;  ///< generator of the initial values; outputs that the op reads need one; empty: poison
};

using Views = std::span<const TensorView>;
/// Enqueues the op. The views are on the context's device, in the order of OpCase::inputs and OpCase::outputs. The
/// workspace has type u8.
using RunOp = std::function<void(Context& context, Views inputs, Views outputs, const TensorView& workspace)>;

/// An op that needs preparation (such as a cuDNN plan), prepared for one context.
struct PreparedOp {
  std::size_t workspace_bytes = 0;
  RunOp run;
};

/// One call of one op. Its tests, the comparison of backends, the thread-count test and the benchmark use the same
/// description.
struct OpCase {
  std::string name;  ///< "relu_forward f32 (2, 3, 5)": unique; --benchmark_filter is matched with it
  DType dtype = DType::f32;
  std::vector<TensorSpec> inputs;  ///< inputs, which must keep their bits
  std::vector<TensorSpec> outputs;
  RunOp run;
  RunOp plain;  ///< one call in plain loops over host memory, without a backend; empty: the host's op is the oracle
  std::function<std::size_t(Context&)> workspace_bytes;  ///< bytes of workspace; empty: none is needed
  std::function<PreparedOp(Context&)> prepare;  ///< prepares ops that need it; replaces run and workspace_bytes
  double bytes = 0;                             ///< bytes that one call must move; 0: tensor_bytes()
  double flops = 0;                             ///< operations of one call
  double tolerance = 0;  ///< largest relative error of an output against another backend or the oracle; 0: same bits
};

/// Returns the bytes of all inputs and outputs, each counted once.
[[nodiscard]] double tensor_bytes(const OpCase& item);
/// Returns the bytes that one call must move, for the benchmark's GB/s.
[[nodiscard]] double bytes_of(const OpCase& item);

/// Adds a tensor to `specs` if `condition` holds, for tensors that only some calls have.
inline void add_if(bool condition, std::vector<TensorSpec>& specs, TensorSpec spec) {
  if (condition) {
    specs.push_back(std::move(spec));
  }
}

/// Returns an OpCase::workspace_bytes that returns bytes(context, x). `bytes` is the op's function for the size of the
/// workspace. x is a view of this type and shape without memory.
template <class Bytes>
std::function<std::size_t(Context&)> workspace_for(Bytes bytes, DType dtype, const Shape& shape) {
  return [=](Context& context) { return bytes(context, TensorView(nullptr, dtype, context.device(), shape)); };
}

/// Returns the relative error that rounding to a 16-bit type may cost, in addition to a tolerance for f32; 0 for other
/// types.
[[nodiscard]] double rounding_of(DType dtype);

/// Returns the case with its plain loops in place of the op, or the case itself if it has no plain loops.
[[nodiscard]] OpCase plain_twin(const OpCase& item);

/// One call on a GPU and its twin on the host. For a 16-bit call the twin may compute in f32.
struct DeviceCase {
  OpCase device;
  OpCase host;
  double tolerance = 0;  ///< largest relative error of the outputs that are floating point
};

/// Appends all DeviceCases of `more` to `cases`.
void append(std::vector<DeviceCase>& cases, std::vector<DeviceCase> more);
/// Makes a DeviceCase in which the host computes plain_twin(host). The tolerance is that of the twin, plus, for 16-bit
/// types, the error of rounding the outputs.
[[nodiscard]] DeviceCase device_case(const OpCase& device, const OpCase& host);
/// Returns a DeviceCase of make(dtype) for each type that GPUs compute in. The twin on the host is make(f32).
[[nodiscard]] std::vector<DeviceCase> device_cases(const std::function<OpCase(DType)>& make);
/// Calls each of the makers (`first` and `more`) for each element of the list, and returns all DeviceCases. A maker is
/// a function make(element, dtype), or make(element) if elements have a member `dtype`. In the second case the maker is
/// called for elements of type f32 only, with `dtype` set to each type that GPUs compute in.
template <class List, class First, class... More>
[[nodiscard]] std::vector<DeviceCase> device_cases(const List& list, const First& first, const More&... more) {
  std::vector<DeviceCase> cases;
  const auto add = [&](const auto& element, const auto& make) {
    if constexpr (std::is_invocable_v<decltype(make), decltype(element), DType>) {
      append(cases, device_cases([&](DType dtype) { return make(element, dtype); }));
    } else if (element.dtype == DType::f32) {
      append(cases, device_cases([&, typed = element](DType dtype) mutable {
               typed.dtype = dtype;
               return make(typed);
             }));
    }
  };
  for (const auto& element : list) {
    add(element, first);
    (add(element, more), ...);
  }
  return cases;
}
/// Returns DeviceCases in which GPU and host make the same call, with the call's own tolerance.
[[nodiscard]] std::vector<DeviceCase> same_cases(const std::vector<OpCase>& items);
/// Returns same_cases() of make(element) for each element of the list.
template <class List, class Make>
[[nodiscard]] std::vector<DeviceCase> same_cases(const List& list, Make make) {
  std::vector<OpCase> items;
  for (const auto& element : list) {
    items.push_back(make(element));
  }
  return same_cases(items);
}
/// Returns the same call on tensors that begin one element after a 16-byte boundary, as views into tensors of one axis.
/// Must not be called for ops with OpCase::prepare.
[[nodiscard]] OpCase off_boundary(const OpCase& item);

/// An OpCase with memory for one context: guarded tensors on the host and, for a CUDA context, their copies on the
/// device, guards included.
class OpInstance {
 public:
  /// `inputs`, if given, replaces the generators, e.g. by another instance's inputs (converted to this case's types).
  OpInstance(const OpCase& item, Context& context, const std::vector<GuardedTensor>* inputs = nullptr);

  /// Sets all outputs and the workspace to their initial values, enqueues the op and waits for it. Then copies all
  /// tensors to the host.
  void run();
  /// Enqueues the op and does nothing else, for timing.
  void enqueue() { op_.run(context_, input_views_, output_views_, workspace_view_); }

  /// Returns an empty text when no guard byte and no input changed in run(), otherwise a text that names the change.
  [[nodiscard]] std::string check() const;

  [[nodiscard]] const std::vector<GuardedTensor>& inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<GuardedTensor>& outputs() const { return outputs_; }
  [[nodiscard]] const GuardedTensor& output(std::size_t index) const { return outputs_.at(index); }
  [[nodiscard]] Views input_views() const { return input_views_; }    ///< views on the context's device
  [[nodiscard]] Views output_views() const { return output_views_; }  ///< views on the context's device

 private:
  struct Image {
    Tensor memory;  ///< memory on the device; empty on the host, where the guarded tensor itself is used
    TensorView view;
  };
  Image place(const GuardedTensor& host);
  void send(const GuardedTensor& host, const Image& image);
  void fetch(const GuardedTensor& host, const Image& image);

  const OpCase item_;
  Context& context_;
  PreparedOp op_;
  std::vector<GuardedTensor> inputs_, outputs_;
  std::vector<std::size_t> input_hashes_;  ///< hashes of the inputs, which must keep their bits
  std::optional<GuardedTensor> workspace_;
  std::vector<Image> input_images_, output_images_;
  Image workspace_image_;
  std::vector<TensorView> input_views_, output_views_;
  TensorView workspace_view_;
};

}  // namespace lockstep::testing
