#include <lockstep/app/run_summary.hpp>

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

int exit_code_of(RunEnd end) {
  return end == RunEnd::stopped || end == RunEnd::out_of_time ? exit_code::kStopped : exit_code::kFinished;
}

std::string end_text(const RunResult& result, const RunOptions& options, bool trained, const std::string& folder) {
  const Position& at = result.progress.position;
  const bool no_better = result.end == RunEnd::no_better;
  if (exit_code_of(result.end) == exit_code::kStopped) {
    return concat("stopped by ", result.end == RunEnd::stopped ? "a signal" : "--max-time", " at step ", at.step,
                  "; --resume auto goes on from ", folder, "/last\n");
  }
  std::string begin = no_better ? "finished by --patience: " : "finished: ";
  if (!trained) {  // the run had no steps left to do
    begin = concat("already finished, at epoch ", at.epoch, " (--epochs ", options.epochs, "), step ", at.step,
                   options.steps > 0 ? concat(" (--steps ", options.steps, ")") : std::string(),
                   no_better ? concat(" (--patience ", options.patience, ")") : std::string(), ": ");
  }
  return concat(begin, result_text(result.progress), "; results in ", folder, '\n');
}

}  // namespace lockstep::nn
