#pragma once

#include <string>
#include <string_view>

#include <lockstep/kernels/loss_scale.hpp>
#include <lockstep/nn/model/parameter_set.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Whether and how the training loss is scaled (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2):
/// without a scale, gradients of f16 activations below 6e-8 would be 0. The scale lies in the ParameterSet on the
/// device. A plan with PlanOptions::scaled_loss reads it there; the optimizer divides by it and changes it. f32 and
/// bf16 need no scale; there a power of two changes no bit unless something overflows.
///
/// automatic means dynamic in f16 and off otherwise; resolved() replaces it before use.
struct LossScale {
  enum class Kind : unsigned char { off, fixed, dynamic, automatic } kind = Kind::off;
  double initial = 65536;      ///< first scale; a fixed one never changes
  ops::LossScaleOptions rule;  ///< how a dynamic scale changes

  [[nodiscard]] bool scales() const { return kind == Kind::fixed || kind == Kind::dynamic; }
  [[nodiscard]] bool dynamic() const { return kind == Kind::dynamic; }
};

/// Parses "auto", "dynamic", "off" or a positive number, which gives a fixed scale. UsageError otherwise.
[[nodiscard]] LossScale parse_loss_scale(std::string_view text);
/// Replaces automatic by its meaning for plans of `dtype`; returns other kinds unchanged.
[[nodiscard]] LossScale resolved(LossScale scale, DType dtype);
/// Returns all settings that affect updates: "off", "fixed 1024", "dynamic 65536 x 2 after 2000, x 0.5, 1 to 16777216".
[[nodiscard]] std::string text_of(const LossScale& scale);
/// Throws UsageError for values out of range, and for automatic.
void require_loss_scale(const LossScale& scale);
/// Adds the scale, at first `initial`, and its count of good updates to the states of a set. A second call throws
/// StateError. Checkpoints hold a dynamic scale; a scale that is not dynamic never changes.
void add_loss_scale(Context& context, ParameterSet& parameters, double initial, bool dynamic);
void describe(Schema& schema, LossScale& scale);

}  // namespace lockstep::nn
