#pragma once

#include <optional>
#include <string>

#include <lockstep/nn/run/training_run.hpp>

/// Functions for the lines that a training program prints when it ends.
namespace lockstep::nn {

/// Returns a metric's `value` as text: "93.21 %" for accuracies, "0.1234" for others, "not measured" without a value.
[[nodiscard]] std::string value_text(const std::string& metric, std::optional<double> value);

/// Returns the result of a run as a text: "test accuracy 93.21 %, best 93.40 %".
[[nodiscard]] std::string result_text(const RunProgress& progress);

/// Returns kStopped for a run that was stopped by a signal or by its time limit, otherwise kFinished.
[[nodiscard]] int exit_code_of(RunEnd end);

/// Returns the last line that a run prints: how the run ended, what it reached, and where its results are. `trained` is
/// false if the run had nothing left to do.
[[nodiscard]] std::string end_text(const RunResult& result, const RunOptions& options, bool trained,
                                   const std::string& folder);

}  // namespace lockstep::nn
