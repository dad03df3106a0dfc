#include "tools/lockstep_report/quantities.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace lockstep::tools {
namespace {

constexpr std::array kFirst{Quantity{"loss", "loss"}, Quantity{"accuracy", "accuracy, %", 100},
                            Quantity{"top_k_accuracy", "accuracy of the first k, %", 100},
                            Quantity{"learning_rate", "learning rate"}};
/// Further quantities that have a title and a unit of their own.
constexpr std::array kOther{Quantity{"comm_exposed_s", "exposed communication, ms a step", 1e3},
                            Quantity{"calibration_error", "expected calibration error"},
                            Quantity{"worst_class_accuracy", "accuracy of the worst class, %", 100}};
constexpr const Quantity& kExposed = kOther[0];

}  // namespace

Quantity quantity_of(const std::string& field) {
  for (const auto& quantities : {std::span<const Quantity>(kFirst), std::span<const Quantity>(kOther)}) {
    const auto known = std::ranges::find(quantities, field, &Quantity::field);
    if (known != quantities.end()) {
      return *known;
    }
  }
  return {field, field};
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
  for (const Quantity& known : kFirst) {
    take_if([&](const std::string& field) { return field == known.field; });
  }
  take_if([](const std::string& field) { return field.ends_with(kPerSecond); });
  take_if([](const std::string& field) { return field == kExposed.field; });
  take_if([](const std::string&) { return true; });
  return ordered;
}

}  // namespace lockstep::tools
