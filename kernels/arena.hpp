#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include <lockstep/kernels/operands.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// A run of arena elements whose tensors share one parameter group; counts include the zero padding between tensors.
struct ArenaSegment {
  std::int64_t offset = 0;  ///< first element, from the start of the arena
  std::int64_t count = 0;   ///< elements
  double learning_rate_scale = 1;
  double weight_decay = 0;
  bool trainable = true;  ///< false: the update leaves the elements alone
  bool adapts = true;     ///< false: no trust ratio (lars.hpp), as for biases and norms; other updates do not ask
};

/// What every optimizer update takes: the elements [begin, begin + n) of its arenas, which may be the whole, a bucket
/// or a shard. Parts of segments outside the range are skipped, elements in no segment are left alone. Views are
/// contiguous and share no memory; n may be 0. Read and written once each. Deterministic: an element's bits do not
/// depend on how the arena is cut into ranges, unless the update says so.
struct ArenaUpdate {
  std::span<const ArenaSegment> segments;  ///< sorted, not overlapping; on the host they must live until the op has run
  std::int64_t begin = 0;
  TensorView learning_rate;  ///< f64 scalar; an element's is that times its learning_rate_scale
  /// Scalar of the type of the parameters; gradients are multiplied by it before anything else: what undoes a loss
  /// scale and clips. Not given: 1.
  TensorView factor;
  TensorView skip;        ///< i32 scalar; not 0: parameters, states and copy keep their bits. Not given: never
  TensorView parameters;  ///< (n) f32, on the host also f64
  TensorView gradients;   ///< (n) of the type of the parameters, or bf16 or f16 beside f32
  /// (n) bf16 or f16 beside f32, of the type of 16-bit gradients: the updated parameters rounded to nearest even.
  /// Written where parameters are updated; may be missing.
  TensorView copy;
};

/// The checks of `update` and of the optimizer's states, which are like the parameters; states that are not given are
/// passed over. DeviceError, DTypeError and ShapeError as above says; UsageError for a scale or decay that is not
/// finite.
void require_arena_update(const Context& context, std::string_view op, const ArenaUpdate& update,
                          std::initializer_list<Operand> states);

/// [begin, end): the elements of the range at hand that a segment covers; empty, begin >= end, when it is elsewhere.
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
