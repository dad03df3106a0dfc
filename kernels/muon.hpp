#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Ops for Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks").
// nn/optim/orthogonalizer.hpp combines these ops with matrix products. All ops are deterministic and take no workspace.

struct MuonOptions {
  double momentum = 0.95;  ///< in [0, 1)
  bool nesterov = true;
};

/// Throws UsageError when an option is out of range; `op` names the caller.
void require_muon_options(std::string_view op, const MuonOptions& options);

/// Computes `direction` as torch.optim.Muon does; other ops then orthogonalise the direction:
///   g = factor * grad;  v += (1 - momentum) * (g - v);  direction = nesterov ? g + momentum * (v - g) : v
/// for the elements of trainable segments; other elements do not change. velocity and direction (n) have the type of
/// the parameters. Parameters, learning rates and decay are not used. If the update is skipped, nothing changes. Throws
/// the errors of require_arena_update(), and UsageError for options out of range, missing views, and an update with a
/// `copy`.
void muon_direction(Context& context, const MuonOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                    const TensorView& direction);

/// Computes factors[i] = 1 / max(sqrt(squares[i]), epsilon). If squares[i] is the sum of the squares of a matrix's
/// elements, the matrix times factors[i] has the Frobenius norm 1. If the matrix's norm is below epsilon, the result's
/// norm is below 1. squares (n) is f64; factors (n) f32, on the host also f64; both are contiguous, n may be 0. Throws
/// UsageError if epsilon is not above 0.
void muon_factor(Context& context, double epsilon, const TensorView& squares, const TensorView& factors);

/// The coefficients of the polynomial a I + b x + c y, where x is a matrix, y = x x, and I is the identity. The
/// defaults are those of Jordan et al.: five iterations bring singular values between about 0.01 and 1 into 0.7 to 1.2.
struct MuonPolynomial {
  double a = 3.4445;
  double b = -4.7750;
  double c = 2.0315;
};
/// Computes z = a I + b x + c y for each matrix of a batch. x, y, z: (batch, k, k), contiguous, of one type: f32, f64
/// or bf16 on the host, f32, bf16 or f16 on a GPU. Computes in accumulation_dtype() and rounds once. z may be x or y.
void muon_polynomial(Context& context, const MuonPolynomial& polynomial, const TensorView& x, const TensorView& y,
                     const TensorView& z);

namespace backend {  // the functions that muon.cpp calls after its checks
LOCKSTEP_BACKENDS(muon_direction);
LOCKSTEP_BACKENDS(muon_factor);
LOCKSTEP_BACKENDS(muon_polynomial);
}  // namespace backend

}  // namespace lockstep::ops
