#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// Settings for groups of parameters: weight decay by ParameterRole, learning rate by name. With any number of groups,
/// an update is one pass over the arena of parameters, because each group is a list of segments of this arena
/// (ops::ArenaSegment).
struct ParameterGroups {
  std::optional<double> norm_weight_decay{};  ///< weight decay of norms' scales and shifts, instead of the common decay
  std::optional<double> bias_weight_decay{};  ///< weight decay of biases outside of norms, instead of the common decay
  struct Rate {
    std::string pattern;  ///< pattern of names, like "layer4.*"; * stands for any characters and ? for one
    double factor = 1;    ///< factor of the learning rate; 0: the parameters never change
  };
  std::vector<Rate> rates{};  ///< factors by name; if several patterns match a name, the last one counts
};

/// Parses "PATTERN=FACTOR". Throws UsageError if `text` does not have this form, or if the factor is negative or not
/// finite.
[[nodiscard]] ParameterGroups::Rate parse_rate(const std::string& text);
/// Returns the factor of the learning rate of parameter `name`. The factor is 1 if no pattern matches the name.
[[nodiscard]] double rate_of(const ParameterGroups& groups, const std::string& name);
/// Throws UsageError if a decay is negative or not finite, or if a pattern matches none of `names`.
void require_groups(const ParameterGroups& groups, const std::vector<std::string>& names);
/// Formats all settings, like "norm decay 0, bias decay 0.1, rates layer4.*=0.1 fc.*=10". The text is empty if all
/// settings are the default.
[[nodiscard]] std::string text_of(const ParameterGroups& groups);
void describe(Schema& schema, ParameterGroups& groups);

}  // namespace lockstep::nn
