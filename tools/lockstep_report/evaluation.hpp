#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

/// The last evaluation of a run, from evaluation.json (nn/run/evaluation/class_report.hpp).
struct Evaluation {
  struct Class {
    std::string name;
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    std::int64_t not_finite = 0;
    /// Pairs (predicted class, number of this class's samples that got this prediction). Pairs with the number 0 are
    /// left out.
    std::vector<std::pair<std::int64_t, std::int64_t>> predicted;
    [[nodiscard]] double accuracy() const {
      return samples == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(samples);
    }
  };
  struct Bin {
    std::int64_t samples = 0;
    double accuracy = 0;
    double confidence = 0;
  };
  struct Sample {
    std::int64_t sample = 0;
    std::int64_t label = 0;
    std::optional<std::int64_t> predicted{};  ///< predicted class; empty if the sample's outputs are not finite
    std::optional<double> loss{};             ///< loss of the sample; empty if the loss is not finite
    std::string picture;                      ///< PNG file in base64; empty if there is no picture
  };
  std::int64_t step = 0;
  std::vector<Class> classes;
  std::vector<Bin> bins;
  std::optional<double> calibration_error{};
  std::vector<Sample> worst;
};

/// Reads evaluation.json. A DataError names the file if its contents are no evaluation, or if its numbers contradict
/// each other.
[[nodiscard]] Evaluation read_evaluation(const std::string& path);

/// Returns HTML: the confusion matrix, a bar for each class, the calibration diagram, and the worst samples. For more
/// than 30 classes, the result has only the most frequent confusions and the least accurate classes. `run` is the name
/// of the run.
[[nodiscard]] std::string draw(const Evaluation& evaluation, const std::string& run);

}  // namespace lockstep::tools
