#include "tools/lockstep_report/quantities.hpp"

#include <array>

namespace lockstep::tools {
namespace {

constexpr std::array kFirst{Quantity{"loss", "loss"}, Quantity{"accuracy", "accuracy, %", 100},
                            Quantity{"top_k_accuracy", "accuracy of the first k, %", 100},
                            Quantity{"learning_rate", "learning rate"}};
constexpr Quantity kExposed{"comm_exposed_s", "exposed communication, ms a step", 1e3};

}  // namespace

Quantity quantity_of(const std::string& field) {
  for (const Quantity& known : kFirst) {
    if (known.field == field) {
      return known;
    }
  }
  return field == kExposed.field ? kExposed : Quantity{field, field};
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
