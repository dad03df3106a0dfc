#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/runtime/files/json.hpp>

namespace lockstep::nn {

/// What a classifier made of the samples of a test set, in counts: which class it takes for which, how far its
/// confidence is right, and which samples it gets most wrong. The counts are integers, and so are the sums of
/// confidence (in units of 2^-32): they are the same however samples are divided over batches and ranks.
///
/// A sample's prediction is that of kernels/prediction.hpp, its confidence the softmax there. A sample whose logits
/// have no softmax is not finite: it has no prediction, counts as wrong, and is in no bin.
struct ClassReport {
  static constexpr int kBins = 15;           ///< of confidence, as Guo et al. 2017, "On Calibration of Modern Networks"
  static constexpr int kMostClasses = 4096;  ///< the counts take classes^2 * 8 bytes

  struct Bin {  ///< bin b: samples with b / kBins < confidence <= (b + 1) / kBins
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    std::int64_t confidence = 0;  ///< sum, in units of 2^-32
  };
  struct Sample {
    std::int64_t id = 0;  ///< its index in the data set
    std::int32_t label = 0;
    std::int32_t predicted = 0;  ///< -1: not finite
    double loss = 0;             ///< -log softmax at the label; infinite where it is not finite
    double confidence = 0;       ///< of the prediction; 0 where there is none
  };

  int classes = 0;
  std::vector<std::int64_t> confusion{};   ///< (classes, classes): label, prediction
  std::vector<std::int64_t> not_finite{};  ///< by label
  std::array<Bin, kBins> bins{};
  std::size_t most_worst = 0;   ///< so many of `worst` are kept
  std::vector<Sample> worst{};  ///< of greatest loss; of equal losses those of smaller ids. In this order

  ClassReport() = default;
  /// Empty counts. UsageError unless 1 <= classes <= kMostClasses.
  ClassReport(int classes, std::size_t most_worst);

  /// A sample's logits (classes). A label out of range is not counted: whoever computes the loss reports it.
  void add(std::int64_t id, std::int32_t label, std::span<const double> logits);
  /// The counts of other samples of the same classes.
  void add(const ClassReport& other);
  /// A sample that other counts have among their worst.
  void keep(const Sample& sample);

  [[nodiscard]] std::int64_t count(int label, int predicted) const {
    return confusion[static_cast<std::size_t>(label) * static_cast<std::size_t>(classes) +
                     static_cast<std::size_t>(predicted)];
  }
  [[nodiscard]] std::int64_t samples() const;              ///< not finite ones too
  [[nodiscard]] std::int64_t samples_of(int label) const;  ///< likewise
  [[nodiscard]] double accuracy_of(int label) const;       ///< NaN of a class without samples
  [[nodiscard]] std::int64_t all_not_finite() const;
  /// Sum over the bins of |accuracy - mean confidence|, weighted by their samples; NaN without a finite sample.
  [[nodiscard]] double calibration_error() const;
  /// Of the classes that have samples; NaN without any.
  [[nodiscard]] double worst_class_accuracy() const;
};

/// Names of classes for people: `names[label]`, or the number where there are none.
[[nodiscard]] std::string class_name(const std::vector<std::string>& names, int label);

/// Lines for a terminal: the confusion matrix of up to 12 classes, else the ten of least accuracy with what each is
/// most often taken for; then the calibration error, and how many samples are not finite.
[[nodiscard]] std::string text_of(const ClassReport& report, const std::vector<std::string>& names);

/// The report as evaluation.json has it: "classes" (name, samples, correct, not_finite, predicted: pairs of class and
/// count, those above 0), "bins" (samples, accuracy, confidence), "calibration_error", "worst" (sample, label,
/// predicted, loss, confidence, and picture: a PNG file in base64). picture: the PNG of a sample, or empty; empty
/// function: no pictures.
[[nodiscard]] Json::Object json_of(const ClassReport& report, const std::vector<std::string>& names,
                                   const std::function<std::string(std::int64_t sample)>& picture = {});

/// base64 of RFC 4648, with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace lockstep::nn
