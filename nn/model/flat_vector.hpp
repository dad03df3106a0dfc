#pragma once

#include <cstdint>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Tensors that a flat vector holds: the parameters, the parameters followed by the running statistics, or the
/// gradients.
enum class FlatPart : unsigned char { values, values_and_statistics, gradients };

/// Returns the number of elements of a flat vector. A flat vector holds the parameters (or their gradients) in the
/// order of ParameterSet::parameters(), each row-major in its logical shape, without gaps. With
/// FlatPart::values_and_statistics, the running statistics follow in the order of ParameterSet::buffers(). Frozen
/// parameters have elements, too; their gradients read as 0 and are not written.
[[nodiscard]] std::int64_t flat_size(const ParameterSet& set, FlatPart part);

/// read_flat() copies the tensors of `part` to `vector`, and write_flat() copies them from `vector`. `vector` must have
/// one axis of flat_size() elements, f32 or f64. A vector in host memory may have any stride. A vector on a GPU must be
/// contiguous and have the type of the set. read_flat() reads the running statistics for evaluation. write_flat() sets
/// both these and the running statistics that training updates. write_flat() of values also rounds the 16-bit weights.
///
/// Both functions multiply each gradient by `factor` when they copy. For all other parts, `factor` must be 1.
///
/// The copies are enqueued on the context's stream. The functions wait for the stream if `vector` is in host memory.
/// They throw ShapeError for a wrong shape or stride, DTypeError for a wrong type, and DeviceError for memory of
/// another device. After such an error, nothing has been written.
void read_flat(Context& context, const ParameterSet& set, FlatPart part, const TensorView& vector, double factor = 1);
void write_flat(Context& context, ParameterSet& set, FlatPart part, const TensorView& vector, double factor = 1);

}  // namespace lockstep::nn
