#pragma once

#include <string_view>

#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::nn {

/// Types in which a run computes, chosen by the values of --dtype:
///
///   name         activations, factors of products   in memory   parameters, gradients of parameters, statistics
///   fp32, f32    f32                                 4 bytes     f32
///   tf32         f32, on GPUs factors with 10 bits   4 bytes     f32
///                after the point (PlanOptions::tf32)
///   bf16         bf16: 8 significant bits, range     2 bytes     f32
///                of f32
///   fp16, f16    f16: 11 significant bits, range     2 bytes     f32
///                6e-8 to 65504, so small gradients
///                need a loss scale; on GPUs only
///   f64          f64; on the host only               8 bytes     f64
///
/// Sums have the type of the parameters.
struct Precision {
  DType dtype = DType::f32;
  bool tf32 = false;
  friend bool operator==(const Precision&, const Precision&) = default;
};

[[nodiscard]] Precision parse_precision(std::string_view name);  ///< throws UsageError for another name
[[nodiscard]] std::string_view name_of(Precision precision);     ///< returns "fp32", "tf32", "bf16", "fp16" or "f64"

/// Throws UsageError unless `device` can run plans in `dtype`: f16 needs a GPU, f64 the host.
void require_computed_on(Device device, DType dtype);

}  // namespace lockstep::nn
