#pragma once

#include <optional>
#include <string>

#include <lockstep/nn/run/training_run.hpp>

/// Functions for the lines that a training program prints when it ends.
namespace lockstep::nn {

/// Formats a value of a metric: "93.21 %" for accuracies, "0.1234" for other metrics, "not measured" without a value.
[[nodiscard]] std::string value_text(const std::string& metric, std::optional<double> value);

/// Formats the result: "test accuracy 93.21 %, best 93.40 %".
[[nodiscard]] std::string result_text(const RunProgress& progress);

/// Returns kStopped for a run that was stopped by a signal or by its time, otherwise kFinished.
[[nodiscard]] int exit_code_of(RunEnd end);

/// Returns the last line of a run: how the run ended, what it reached, and where its results are. `trained` is true if
/// the run has made a step or has begun anew.
[[nodiscard]] std::string end_text(const RunResult& result, const RunOptions& options, bool trained,
                                   const std::string& folder);

}  // namespace lockstep::nn
