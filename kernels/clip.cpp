#include <lockstep/kernels/clip.hpp>

#include <array>
#include <cmath>

#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {

void clip_factor(Context& context, double max_norm, const ClipScalars& scalars) {
  constexpr std::string_view kOp = "clip_factor";
  const ClipScalars& s = scalars;
  struct Scalar {
    Operand operand;
    DType dtype;
    bool required;
  };
  const std::array<Scalar, 8> all{{{{s.factor, "factor"}, s.factor.dtype, true},
                                   {{s.skip, "skip"}, DType::i32, true},
                                   {{s.squared_norm, "squared_norm"}, DType::f64, false},
                                   {{s.loss_scale, "loss_scale"}, s.factor.dtype, false},
                                   {{s.divisor, "divisor"}, s.factor.dtype, false},
                                   {{s.step, "step"}, DType::i64, false},
                                   {{s.skipped, "skipped"}, DType::i64, false},
                                   {{s.norm, "norm"}, DType::f64, false}}};
  for (const Scalar& scalar : all) {
    require_on(context.device(), kOp, {&scalar.operand.view});
  }
  for (const auto& [operand, dtype, required] : all) {
    require<ShapeError>(!required || operand.view.given(), kOp, ": ", operand.name, " is not given, expected a tensor");
    require<DTypeError>(!operand.view.given() || operand.view.dtype == dtype, kOp, ": ", operand.name, " is ",
                        operand.view.dtype, ", expected ", dtype);
    const bool several = &operand.view == &all[2].operand.view;
    require<ShapeError>(!operand.view.given() || operand.view.numel() == 1 ||
                            (several && operand.view.numel() > 1 && operand.view.is_contiguous()),
                        kOp, ": ", operand.name, " is ", operand.view.shape, ", expected a scalar",
                        several ? " or several numbers without gaps" : "");
  }
  require<DTypeError>(s.factor.dtype == DType::f32 || s.factor.dtype == DType::f64, kOp, ": factor is ", s.factor.dtype,
                      ", expected f32 or f64");
  for (const Scalar& a : all) {
    for (const Scalar& b : all) {
      require<ShapeError>(&a == &b || !a.operand.view.given() || !overlaps(a.operand.view, b.operand.view), kOp, ": ",
                          a.operand.name, " overlaps ", b.operand.name, ", expected memory of its own for each");
    }
  }
  require<UsageError>(std::isfinite(max_norm) && max_norm >= 0, kOp, ": max_norm is ", max_norm,
                      ", expected a number of at least 0");
  require<UsageError>(s.squared_norm.given() || (max_norm == 0 && !s.norm.given()), kOp,
                      ": squared_norm is not given, expected it with max_norm and norm");
  dispatch(context, kOp, LOCKSTEP_BACKEND(clip_factor, max_norm, scalars));
}

}  // namespace lockstep::ops
