#include <lockstep/kernels/muon.hpp>

#include <cmath>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void require_muon_options(std::string_view op, const MuonOptions& options) {
  require<UsageError>(options.momentum >= 0 && options.momentum < 1, op, ": momentum is ", options.momentum,
                      ", expected at least 0 and below 1");
}

void muon_direction(Context& context, const MuonOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                    const TensorView& direction) {
  constexpr std::string_view kOp = "muon_direction";
  require_arena_update(context, kOp, update, {{velocity, "velocity"}, {direction, "direction"}});
  require<UsageError>(velocity.given() && direction.given(), kOp, ": velocity or direction is missing, expected both");
  require<UsageError>(!update.copy.given(), kOp, ": copy is given, expected none");
  require_muon_options(kOp, options);
  dispatch(context, kOp, LOCKSTEP_BACKEND(muon_direction, options, update, velocity, direction));
}

void muon_factor(Context& context, double epsilon, const TensorView& squares, const TensorView& factors) {
  constexpr std::string_view kOp = "muon_factor";
  require_on(context.device(), kOp, {&squares, &factors});
  require<DTypeError>(factors.dtype == DType::f32 || factors.dtype == DType::f64, kOp, ": factors are ", factors.dtype,
                      ", expected f32 or f64");
  require<ShapeError>(squares.given() && squares.shape.rank() == 1, kOp, ": squares are ", squares.shape,
                      ", expected (n)");
  require_tensor(kOp, {squares, "squares"}, DType::f64, squares.shape);
  require_tensor(kOp, {factors, "factors"}, factors.dtype, squares.shape);
  require_apart(kOp, {factors, "factors"}, {{squares, "squares"}});
  require<UsageError>(epsilon > 0, kOp, ": epsilon is ", epsilon, ", expected above 0");
  dispatch(context, kOp, LOCKSTEP_BACKEND(muon_factor, epsilon, squares, factors));
}

void muon_polynomial(Context& context, const MuonPolynomial& polynomial, const TensorView& x, const TensorView& y,
                     const TensorView& z) {
  constexpr std::string_view kOp = "muon_polynomial";
  require_on(context.device(), kOp, {&x, &y, &z});
  require_alike(kOp, {{x, "x"}, {y, "y"}, {z, "z"}});
  require<ShapeError>(x.shape.rank() == 3 && x.shape[1] == x.shape[2], kOp, ": x is ", x.shape,
                      ", expected (batch, k, k)");
  require_same_or_apart(kOp, {z, "z"}, {x, "x"});
  require_same_or_apart(kOp, {z, "z"}, {y, "y"});
  require<UsageError>(std::isfinite(polynomial.a) && std::isfinite(polynomial.b) && std::isfinite(polynomial.c), kOp,
                      ": the coefficients are ", polynomial.a, ", ", polynomial.b, " and ", polynomial.c,
                      ", expected finite numbers");
  dispatch(context, kOp, LOCKSTEP_BACKEND(muon_polynomial, polynomial, x, y, z));
}

}  // namespace lockstep::ops
