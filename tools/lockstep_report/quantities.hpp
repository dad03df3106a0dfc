#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

/// What people call a field of metrics.jsonl, and what a chart multiplies its values with.
struct Quantity {
  std::string_view field;
  std::string_view title;
  double factor = 1;
};

inline constexpr std::string_view kPerSecond = "_per_second";  ///< ends the name of a rate: "images_per_second"
inline constexpr std::string_view kTest = "test_";             ///< begins the name of what an evaluation measured

/// The title of a field that is not known is its name.
[[nodiscard]] Quantity quantity_of(const std::string& field);

/// The order of charts and columns, whatever run names a field first: loss, accuracy, the learning rate, samples per
/// second, exposed communication, then the others by name.
[[nodiscard]] std::vector<std::string> in_order(std::set<std::string> fields);

}  // namespace lockstep::tools
