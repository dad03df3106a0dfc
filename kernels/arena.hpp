#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include <lockstep/kernels/operands.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Consecutive elements of an arena that hold tensors with the same settings (parameter group). `count` includes the
/// zero padding between these tensors.
struct ArenaSegment {
  std::int64_t offset = 0;  ///< index in the arena of the segment's first element
  std::int64_t count = 0;   ///< number of elements of the segment
  double learning_rate_scale = 1;
  double weight_decay = 0;
  bool trainable = true;  ///< if false, the update does not change the segment's elements
  /// Read by LARS only (lars.hpp): if false, the trust ratio is 1, as usual for biases and norm layers.
  bool adapts = true;
};

/// The arguments of every optimizer update. An update changes the elements [begin, begin + n) of the arenas: all
/// elements, a bucket or a shard. Parts of segments outside this range, and elements in no segment, do not change. n
/// may be 0. Views must be contiguous and must not share memory.
///
/// An update reads and writes each view at most once, and is deterministic, unless the comment of the update says
/// otherwise. The bits of an element do not depend on how the arena is cut into ranges.
struct ArenaUpdate {
  /// The segments, sorted by offset, without overlap. On the host the array must live until the op has run.
  std::span<const ArenaSegment> segments;
  std::int64_t begin = 0;
  TensorView learning_rate;  ///< f64 scalar, multiplied by each segment's learning_rate_scale
  /// Optional scalar of the type of the parameters. Gradients are first multiplied by `factor`, which contains the
  /// inverse of the loss scale and the clipping by norm. If `factor` is not given, gradients are multiplied by 1.
  TensorView factor;
  TensorView skip;        ///< optional i32 scalar: if it is not 0, parameters, states and copy do not change
  TensorView parameters;  ///< (n) f32, on the host also f64
  TensorView gradients;   ///< (n) of the type of the parameters; with f32 parameters also bf16 or f16
  /// Optional: (n) bf16 or f16, allowed only with f32 parameters. If the gradients have 16 bits, the copy must have
  /// their type. The updated elements are also written to the copy, rounded to nearest even.
  TensorView copy;
  /// After the multiplication by factor, gradients are brought into [-clip_value, clip_value], as
  /// torch.nn.utils.clip_grad_value_ does. NaN stays NaN. If clip_value is 0, gradients are not clipped.
  double clip_value = 0;
};

/// Checks `update` and the optimizer's states, which have the type and shape of the parameters; states that are not
/// given are skipped. Throws DeviceError, DTypeError or ShapeError when a rule of ArenaUpdate is broken. Throws
/// UsageError for a scale or decay that is not finite, and for a clip_value that is negative or not finite.
void require_arena_update(const Context& context, std::string_view op, const ArenaUpdate& update,
                          std::initializer_list<Operand> states);

/// The elements [begin, end) of an update's range that one segment covers; begin >= end when it covers none.
struct ArenaPiece {
  std::int64_t begin;
  std::int64_t end;
};
[[nodiscard]] inline ArenaPiece piece_of(const ArenaSegment& segment, std::int64_t range_begin, std::int64_t n) {
  const std::int64_t begin = segment.offset > range_begin ? segment.offset - range_begin : 0;
  const std::int64_t end = segment.offset + segment.count - range_begin;
  return {begin, end < n ? end : n};
}

}  // namespace lockstep::ops
