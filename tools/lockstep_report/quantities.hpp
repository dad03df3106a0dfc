#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

/// A field of metrics.jsonl with its title for people and the factor of its values in a chart.
struct Quantity {
  std::string_view field;
  std::string_view title;
  double factor = 1;
};

inline constexpr std::string_view kPerSecond = "_per_second";  ///< suffix of rates: "images_per_second"
inline constexpr std::string_view kTest = "test_";             ///< prefix of values that an evaluation measured

/// Returns the Quantity of `field`, a field of metrics.jsonl. An unknown field has its own name as title.
[[nodiscard]] Quantity quantity_of(const std::string& field);

/// Returns the fields in the order of charts and columns: loss, accuracy, learning rate, samples per second, exposed
/// communication, then all other fields by name.
[[nodiscard]] std::vector<std::string> in_order(std::set<std::string> fields);

}  // namespace lockstep::tools
