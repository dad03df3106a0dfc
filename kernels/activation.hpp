#pragma once

#include <string_view>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The functions of an activation layer. In these formulas Phi is the distribution function of the standard normal, and
/// sigma(x) = 1 / (1 + exp(-x)):
///
///   gelu       x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2)))                          Hendrycks and Gimpel 2016
///   gelu_tanh  x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), near gelu   the same paper, section 2
///   silu       x * sigma(x), also called swish                                       Elfwing, Uchibe and Doya 2017
///   tanh       tanh(x)
///   sigmoid    sigma(x)
///   relu       max(x, 0), with slope 0 at 0; relu.hpp has the backward pass that needs y only
///   identity   x
enum class Activation : unsigned char { gelu, gelu_tanh, silu, tanh, sigmoid, relu, identity };

/// Returns "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu" or "identity". Throws UsageError for another value.
[[nodiscard]] std::string_view name_of(Activation kind);

// The tensors x, y, dy and dx are contiguous and have one shape and one type: f32, f64 or bf16 on the host; f32, bf16
// or f16 on a GPU, which computes in f32. Both functions are deterministic and need no workspace. Finite x gives finite
// results. NaN stays NaN. If x is infinite, gelu, gelu_tanh and silu may give NaN (infinity times zero).
//
// On the host the error of tanh and sigmoid is at most 3 units in the last place of f32 or f64. The bits of an element
// depend neither on its position nor on the number of elements. matmul (choice "reference") and linear_epilogue compute
// activations with the same bits.

/// Computes y = f(x) for each element, where f is the function `kind`. y may be x.
void activation_forward(Context& context, Activation kind, const TensorView& x, const TensorView& y);

/// Computes dx = dy * f'(x), where f is the function `kind`, and x the input of activation_forward. dx may be dy or x.
void activation_backward(Context& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx);

namespace backend {  // the functions that activation.cpp calls after its checks
LOCKSTEP_BACKENDS(activation_forward);
LOCKSTEP_BACKENDS(activation_backward);
}  // namespace backend

}  // namespace lockstep::ops
