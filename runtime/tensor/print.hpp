#pragma once

#include <cstdint>
#include <string>

#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

struct PrintOptions {
  int precision = 4;              ///< digits behind the point, 0 to 17
  std::int64_t edge_items = 3;    ///< shown at both ends of an axis that is summarised; at least 1
  std::int64_t threshold = 1000;  ///< elements beyond which axes longer than 2 * edge_items are summarised; 0: always
  int line_width = 100;           ///< columns after which a row goes on in the next line; at least 1
};

/// The tensor as text for people, with element type, shape and device:
///   [[0.0000, 0.5000, 1.0000],
///    [   nan,    inf, 1.5000]] f32 (2, 3) on cuda:0
/// Any type, rank and strides. Floating-point numbers have one form per tensor, as numpy chooses it: "2." when all are
/// whole, exponents when one is 1e8 or more, or, with fractions, when one is below 1e-4 or they differ by more than
/// 1000 times; zero and what is not finite has no say. What a summary leaves out is neither read nor copied.
///
/// `context` is one on the view's device (DeviceError naming both otherwise). Its stream is waited for, so that work
/// enqueued on it before is seen; a tensor of a GPU is copied to pageable host memory on it. ShapeError when a view
/// with elements has no memory, UsageError for an option out of range.
[[nodiscard]] std::string to_string(Context& context, const TensorView& view, const PrintOptions& options = {});

}  // namespace lockstep
