#pragma once

#include <string>
#include <string_view>

#include <lockstep/kernels/loss_scale.hpp>
#include <lockstep/nn/model/parameter_set.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Whether and how the loss of training is scaled (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2):
/// without a scale, gradients of f16 activations below 6e-8 would be 0. The scale lies in the ParameterSet on the
/// device. A plan with PlanOptions::scaled_loss reads it there; the optimizer divides by it and changes it. f32 and
/// bf16 need no scale; a power of two changes no bit there unless something overflows.
///
/// automatic means dynamic in f16 and off otherwise; resolve it before use.
struct LossScale {
  enum class Kind : unsigned char { off, fixed, dynamic, automatic } kind = Kind::off;
  double initial = 65536;      ///< fixed: never changes
  ops::LossScaleOptions rule;  ///< dynamic

  [[nodiscard]] bool scales() const { return kind == Kind::fixed || kind == Kind::dynamic; }
  [[nodiscard]] bool dynamic() const { return kind == Kind::dynamic; }
};

/// "auto", "dynamic", "off" or a positive number, which is fixed. UsageError otherwise.
[[nodiscard]] LossScale parse_loss_scale(std::string_view text);
/// Replaces automatic by its meaning for plans of this type; returns others unchanged.
[[nodiscard]] LossScale resolved(LossScale scale, DType dtype);
/// All settings that affect updates: "off", "fixed 1024", "dynamic 65536 x 2 after 2000, x 0.5, 1 to 16777216".
[[nodiscard]] std::string text_of(const LossScale& scale);
/// UsageError for values out of range, and for automatic.
void require_loss_scale(const LossScale& scale);
/// Adds the scale, at first `initial`, and its count of good updates to the states of a set. Once (StateError). A scale
/// that is not dynamic never changes; checkpoints hold a dynamic one.
void add_loss_scale(Context& context, ParameterSet& parameters, double initial, bool dynamic);
void describe(Schema& schema, LossScale& scale);

}  // namespace lockstep::nn
