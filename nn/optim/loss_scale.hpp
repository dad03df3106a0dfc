#pragma once

#include <string>
#include <string_view>

#include <lockstep/kernels/loss_scale.hpp>
#include <lockstep/nn/model/parameter_set.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Options for scaling the training loss (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). Without a
/// scale, f16 gradients of activations below 6e-8 would become 0. The scale is a tensor of the ParameterSet on the
/// device. A plan with PlanOptions::scaled_loss reads the scale. The optimizer divides the gradients by the scale, and
/// changes a dynamic scale. f32 and bf16 need no scale; in these types a scale of a power of two changes no bit unless
/// a number overflows.
///
/// The kind `automatic` means dynamic in f16 and off otherwise; resolved() replaces this kind before use.
struct LossScale {
  enum class Kind : unsigned char { off, fixed, dynamic, automatic } kind = Kind::off;
  double initial = 65536;      ///< first scale of a dynamic kind, or the only scale of a fixed kind
  ops::LossScaleOptions rule;  ///< factors and limits by which a dynamic scale changes

  [[nodiscard]] bool scales() const { return kind == Kind::fixed || kind == Kind::dynamic; }
  [[nodiscard]] bool dynamic() const { return kind == Kind::dynamic; }
};

/// Parses "auto", "dynamic", "off" or a positive number; a number gives a fixed scale. Throws UsageError for other
/// texts.
[[nodiscard]] LossScale parse_loss_scale(std::string_view text);
/// Replaces the kind `automatic` by its meaning for plans of `dtype`. Returns other kinds unchanged.
[[nodiscard]] LossScale resolved(LossScale scale, DType dtype);
/// Returns a text of all settings that affect updates: "off", "fixed 1024", "dynamic 65536 x 2 after 2000, x 0.5, 1 to
/// 16777216".
[[nodiscard]] std::string text_of(const LossScale& scale);
/// Throws UsageError for values out of range and for the kind `automatic`.
void require_loss_scale(const LossScale& scale);
/// Adds two states to a set: the scale, at first `initial`, and the number of finite updates since the scale last
/// changed. Checkpoints hold the scale if `dynamic` is true; otherwise the scale never changes. A second call throws
/// StateError.
void add_loss_scale(Context& context, ParameterSet& parameters, double initial, bool dynamic);
void describe(Schema& schema, LossScale& scale);

}  // namespace lockstep::nn
