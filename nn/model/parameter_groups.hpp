#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Settings for groups of parameters that the optimizer treats differently: weight decay by role, learning rate by
/// name. Each group is a set of segments of the arena (ops::ArenaSegment), so an update is still one pass.
struct ParameterGroups {
  std::optional<double> norm_weight_decay{};  ///< decay of scales and shifts of norms, instead of the common decay
  std::optional<double> bias_weight_decay{};  ///< decay of biases of other layers, instead of the common decay
  struct Rate {
    std::string pattern;  ///< pattern of names, with * for any characters and ? for one: "layer4.*"
    double factor = 1;    ///< factor of the learning rate; 0: the parameters do not change
  };
  std::vector<Rate> rates{};  ///< factors by name; if several patterns fit a name, the last one counts
};

/// Parses "PATTERN=FACTOR". Throws UsageError for another form, and for a factor that is negative or not finite.
[[nodiscard]] ParameterGroups::Rate parse_rate(const std::string& text);
/// Returns the learning-rate factor of a parameter; 1 if no pattern fits.
[[nodiscard]] double rate_of(const ParameterGroups& groups, const std::string& name);
/// Throws UsageError for decays that are negative or not finite, and for a pattern that fits none of the names.
void require_groups(const ParameterGroups& groups, const std::vector<std::string>& names);
/// Formats all settings: "norm decay 0, bias decay 0.1, rates layer4.*=0.1 fc.*=10"; empty if all are the default.
[[nodiscard]] std::string text_of(const ParameterGroups& groups);
void describe(Schema& schema, ParameterGroups& groups);

}  // namespace lockstep::nn
