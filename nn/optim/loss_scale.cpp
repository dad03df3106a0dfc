#include <lockstep/nn/optim/loss_scale.hpp>

#include <optional>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

LossScale parse_loss_scale(std::string_view text) {
  if (text == "auto") {
    return {.kind = LossScale::Kind::automatic};
  }
  if (text == "dynamic") {
    return {.kind = LossScale::Kind::dynamic};
  }
  if (text == "off") {
    return {};
  }
  const std::optional<double> factor = number_in<double>(text);
  require<UsageError>(factor.has_value(), "the loss scale is '", text,
                      "', expected auto, dynamic, off or a positive number");
  const LossScale scale{.kind = LossScale::Kind::fixed, .initial = *factor, .rule = {}};
  require_loss_scale(scale);
  return scale;
}

LossScale resolved(LossScale scale, DType dtype) {
  if (scale.kind == LossScale::Kind::automatic) {
    scale.kind = dtype == DType::f16 ? LossScale::Kind::dynamic : LossScale::Kind::off;
  }
  return scale;
}

std::string text_of(const LossScale& scale) {
  switch (scale.kind) {
    case LossScale::Kind::automatic:
      return "auto";
    case LossScale::Kind::off:
      return "off";
    case LossScale::Kind::fixed:
      return concat("fixed ", exact_text(scale.initial));
    case LossScale::Kind::dynamic:
      break;
  }
  const ops::LossScaleOptions& rule = scale.rule;
  return concat("dynamic ", exact_text(scale.initial), " x ", exact_text(rule.growth), " after ", rule.interval, ", x ",
                exact_text(rule.backoff), ", ", exact_text(rule.least), " to ", exact_text(rule.most));
}

void require_loss_scale(const LossScale& scale) {
  require<UsageError>(
      scale.kind != LossScale::Kind::automatic,
      "the loss scale is auto, expected dynamic, off or a number: resolve auto for the data type before");
  if (!scale.scales()) {
    return;
  }
  ops::require_loss_scale_options("loss scale", scale.rule);
  constexpr double kLeast = 1e-37;  // kLeast, kMost and their inverses are all finite and not 0 in f32
  constexpr double kMost = 1e37;
  const double least = scale.dynamic() ? scale.rule.least : kLeast;
  const double most = scale.dynamic() ? scale.rule.most : kMost;
  require<UsageError>(scale.initial >= least && scale.initial <= most, "the loss scale is ", scale.initial,
                      ", expected ", least, " to ", most);
}

void add_loss_scale(Context& context, ParameterSet& parameters, double initial, bool dynamic) {
  const char* const scale = dynamic ? "loss_scale" : "";
  const char* const good = dynamic ? "loss_scale_good" : "";
  parameters.add(context, {.name = ParameterSet::kLossScale,
                           .view = TensorView(nullptr, parameters.dtype(), context.device(), Shape{}),
                           .saved_as = scale,
                           .beside = scale,
                           .numbers = Numbers::scale,
                           .initial = initial});
  parameters.add(context, {.name = ParameterSet::kGoodUpdates,
                           .view = TensorView(nullptr, DType::i64, context.device(), Shape{}),
                           .saved_as = good,
                           .beside = scale,
                           .numbers = Numbers::counts});
}

void describe(Schema& schema, LossScale& scale) {
  schema.group("Training");
  const auto text = [](const LossScale& of) {
    return of.kind == LossScale::Kind::fixed     ? exact_text(of.initial)
           : of.kind == LossScale::Kind::dynamic ? std::string("dynamic")
                                                 : text_of(of);
  };
  schema
      .named("loss_scale", scale, text, parse_loss_scale,
             "factor of the loss in training: dynamic, a number, off or auto; dynamic: halved when gradients are not "
             "finite, doubled after 2000 updates; auto: dynamic for fp16, otherwise off")
      .looks_like("TEXT");
}

}  // namespace lockstep::nn
