#pragma once

#include <cstdint>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

struct PrintOptions {
  int precision = 4;            ///< digits after the point, 0 to 17
  std::int64_t edge_items = 3;  ///< number of elements shown at each end of a shortened axis; at least 1
  /// Axes longer than 2 * edge_items are shortened if the tensor has more elements than `threshold`; with 0, always.
  std::int64_t threshold = 1000;
  int line_width = 100;  ///< columns after which a row continues on the next line; at least 1
};

/// Formats a tensor for people, with its element type, shape and device:
///   [[0.0000, 0.5000, 1.0000],
///    [   nan,    inf, 1.5000]] f32 (2, 3) on cuda:0
/// Takes any type, rank and strides. All floating-point numbers of a tensor are printed in one form, chosen as in
/// numpy. If all numbers are whole, the form is "2.". The form has exponents if a number is 1e8 or more. If some
/// numbers have fractions, the form also has exponents if a number is below 1e-4, or if the largest number is more than
/// 1000 times the smallest. These rules ignore zeros, NaN and infinities. Elements that are not shown are neither read
/// nor copied.
///
/// `context` must be on the view's device; otherwise DeviceError with both devices. The call waits for the context's
/// stream, so the text shows the results of work that was enqueued before. A GPU's tensor is copied to pageable host
/// memory on that stream. ShapeError if a view with elements has no memory, UsageError for an option out of range.
[[nodiscard]] std::string to_string(Context& context, const TensorView& view, const PrintOptions& options = {});

}  // namespace lockstep
