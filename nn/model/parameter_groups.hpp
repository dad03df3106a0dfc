#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Groups of parameters that the optimizer treats otherwise than the rest: decay by role, rates by name. They decide
/// segments of the arena (ops::ArenaSegment), so an update stays one pass.
struct ParameterGroups {
  std::optional<double> norm_weight_decay{};  ///< of scales and shifts of norms, instead of the common decay
  std::optional<double> bias_weight_decay{};  ///< of biases of other layers
  struct Rate {
    std::string pattern;  ///< of names, with * for any characters and ? for one: "layer4.*"
    double factor = 1;    ///< of the learning rate; 0: such parameters do not change
  };
  std::vector<Rate> rates{};  ///< the last pattern that fits a name counts
};

/// "PATTERN=FACTOR". UsageError for another form, and for a factor that is negative or not finite.
[[nodiscard]] ParameterGroups::Rate parse_rate(const std::string& text);
/// The factor of a parameter; 1 where no pattern fits.
[[nodiscard]] double rate_of(const ParameterGroups& groups, const std::string& name);
/// UsageError for decays that are negative or not finite, and for a pattern that fits none of the names.
void require_groups(const ParameterGroups& groups, const std::vector<std::string>& names);
/// All settings: "norm decay 0, bias decay 0.1, rates layer4.*=0.1 fc.*=10"; empty without any.
[[nodiscard]] std::string text_of(const ParameterGroups& groups);
void describe(Schema& schema, ParameterGroups& groups);

}  // namespace lockstep::nn
