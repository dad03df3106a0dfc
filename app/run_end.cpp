#include <lockstep/app/run_end.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

std::string value_text(const std::string& metric, std::optional<double> value) {
  std::ostringstream out;
  if (!value) {
    return "not measured";
  }
  if (std::isnan(*value)) {
    return "-";
  }
  if (metric == "test_accuracy" || metric == "ema_test_accuracy") {
    out << std::fixed << std::setprecision(2) << 100 * *value << " %";
  } else {
    out << std::setprecision(4) << *value;
  }
  return out.str();
}

std::string result_text(const RunProgress& progress) {
  const std::string& by = progress.best_by;
  std::string last;
  if (const auto found = progress.metrics.find(by); found != progress.metrics.end()) {
    last = value_text(by, found->second);
  } else {
    last = value_text(by, by == "test_accuracy" ? progress.test_accuracy : progress.test_loss);
  }
  std::string name = by;
  std::replace(name.begin(), name.end(), '_', ' ');
  return concat(name, ' ', last, ", best ", value_text(by, progress.best));
}

}  // namespace lockstep::nn
