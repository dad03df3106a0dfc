#pragma once

#include <optional>
#include <string>

#include <lockstep/nn/run/training_run.hpp>

/// What a training program says when it ends.
namespace lockstep::nn {

/// "93.21 %" of accuracies, "0.1234" of the rest, "not measured".
[[nodiscard]] std::string value_text(const std::string& metric, std::optional<double> value);

/// "test accuracy 93.21 %, best 93.40 %"
[[nodiscard]] std::string result_text(const RunProgress& progress);

}  // namespace lockstep::nn
