#include "tools/lockstep_report/quantities.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace lockstep::tools {
namespace {

/// Known quantities. In a page, the first kFirst quantities come first, then the rates (kPerSecond), then the quantity
/// kKnown[kFirst], then all other quantities by name.
constexpr std::array kKnown{Quantity{"loss", "loss"},
                            Quantity{"accuracy", "accuracy, %", 100},
                            Quantity{"top_k_accuracy", "accuracy of the first k, %", 100},
                            Quantity{"learning_rate", "learning rate"},
                            Quantity{"comm_exposed_s", "exposed communication, ms a step", 1e3},
                            Quantity{"calibration_error", "expected calibration error"},
                            Quantity{"worst_class_accuracy", "accuracy of the worst class, %", 100}};
constexpr std::size_t kFirst = 4;

}  // namespace

Quantity quantity_of(const std::string& field) {
  const auto* const known = std::ranges::find(kKnown, field, &Quantity::field);
  return known != kKnown.end() ? *known : Quantity{field, field};
}

std::vector<std::string> in_order(std::set<std::string> fields) {
  std::vector<std::string> ordered;
  const auto take_if = [&](const auto& fits) {
    for (auto field = fields.begin(); field != fields.end();) {
      if (fits(*field)) {
        ordered.push_back(*field);
        field = fields.erase(field);
      } else {
        ++field;
      }
    }
  };
  for (const Quantity& known : std::span(kKnown).first(kFirst)) {
    take_if([&](const std::string& field) { return field == known.field; });
  }
  take_if([](const std::string& field) { return field.ends_with(kPerSecond); });
  take_if([](const std::string& field) { return field == kKnown[kFirst].field; });
  take_if([](const std::string&) { return true; });
  return ordered;
}

}  // namespace lockstep::tools
