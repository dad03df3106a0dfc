#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

/// What evaluation.json tells of the last evaluation of a run (nn/run/evaluation/class_report.hpp).
struct Evaluation {
  struct Class {
    std::string name;
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    std::int64_t not_finite = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> predicted;  ///< class and count, above 0
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
    std::optional<std::int64_t> predicted{};  ///< none: its outputs are not finite
    std::optional<double> loss{};             ///< none: infinite
    std::string picture;                      ///< a PNG file in base64; empty: none
  };
  std::int64_t step = 0;
  std::vector<Class> classes;
  std::vector<Bin> bins;
  std::optional<double> calibration_error{};
  std::vector<Sample> worst;
};

/// DataError naming the file where it is no such file, or its numbers contradict each other.
[[nodiscard]] Evaluation read_evaluation(const std::string& path);

/// HTML: the confusion matrix (of up to 30 classes; else the most frequent confusions), a bar a class (of more than 30
/// the least accurate), the calibration diagram, and the worst samples. run: its name.
[[nodiscard]] std::string draw(const Evaluation& evaluation, const std::string& run);

}  // namespace lockstep::tools
