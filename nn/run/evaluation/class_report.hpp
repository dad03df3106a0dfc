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

/// Counts of a classifier's results on a test set: how often it predicts which class for which label, how well its
/// confidence matches its accuracy, and which samples have the greatest loss. All counts and the sums of confidence (in
/// units of 2^-32) are integers. So the report does not depend on how samples are divided over batches and ranks.
///
/// kernels/prediction.hpp defines a sample's prediction; its confidence is the softmax at the prediction. A sample
/// whose logits have no softmax is called not finite: such a sample has no prediction, counts as wrong, and is in no
/// bin.
struct ClassReport {
  /// Number of bins of confidence, as in Guo et al. 2017, "On Calibration of Modern Networks".
  static constexpr int kBins = 15;
  static constexpr int kMostClasses = 4096;  ///< largest number of classes: counts take classes^2 * 8 bytes

  struct Bin {  ///< bin b holds samples with b / kBins < confidence <= (b + 1) / kBins
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    std::int64_t confidence = 0;  ///< sum of confidences, in units of 2^-32
  };
  struct Sample {
    std::int64_t id = 0;  ///< index of the sample in the data set
    std::int32_t label = 0;
    std::int32_t predicted = 0;  ///< predicted class; -1 if the sample is not finite
    double loss = 0;             ///< -log softmax at the label; infinite if the sample is not finite
    double confidence = 0;       ///< softmax at the prediction; 0 if there is no prediction
  };

  int classes = 0;
  std::vector<std::int64_t> confusion{};   ///< counts (classes, classes) by label and prediction
  std::vector<std::int64_t> not_finite{};  ///< number of samples that are not finite, for each label
  std::array<Bin, kBins> bins{};
  std::size_t most_worst = 0;   ///< largest number of samples in `worst`
  std::vector<Sample> worst{};  ///< samples by descending loss; of equal losses the smaller id is first

  ClassReport() = default;
  /// Makes a report with all counts 0. Throws UsageError unless 1 <= `classes` <= kMostClasses.
  ClassReport(int classes, std::size_t most_worst);

  /// Counts a sample by its logits, one per class. Does not count a sample whose label is out of range; the code that
  /// computes the loss reports such a label.
  void add(std::int64_t id, std::int32_t label, std::span<const double> logits);
  /// Adds the counts of report `other`, which must be on other samples of the same classes.
  void add(const ClassReport& other);
  /// Adds `sample` to `worst` if its loss is among the most_worst greatest so far.
  void keep(const Sample& sample);

  [[nodiscard]] std::int64_t count(int label, int predicted) const {
    return confusion[static_cast<std::size_t>(label) * static_cast<std::size_t>(classes) +
                     static_cast<std::size_t>(predicted)];
  }
  [[nodiscard]] std::int64_t samples() const;              ///< number of all samples, also those that are not finite
  [[nodiscard]] std::int64_t samples_of(int label) const;  ///< number of samples of a label, also those not finite
  [[nodiscard]] double accuracy_of(int label) const;       ///< accuracy of a class; NaN if it has no samples
  [[nodiscard]] std::int64_t all_not_finite() const;
  /// Returns the mean over the bins of |accuracy - mean confidence|, weighted by the number of samples in each bin; NaN
  /// if no sample is finite.
  [[nodiscard]] double calibration_error() const;
  /// Returns the lowest accuracy among the classes that have samples; NaN if no class has samples.
  [[nodiscard]] double worst_class_accuracy() const;
};

/// Returns the name of a class for people: `names[label]`, or the label's number if there is no name.
[[nodiscard]] std::string class_name(const std::vector<std::string>& names, int label);

/// Returns lines for a terminal. With up to 12 classes, the lines show the confusion matrix, otherwise the ten classes
/// of lowest accuracy, each with the class for which it is most often mistaken. Then follow the calibration error and
/// the number of samples that are not finite.
[[nodiscard]] std::string text_of(const ClassReport& report, const std::vector<std::string>& names);

/// Returns the report in the form of evaluation.json: "classes" (name, samples, correct, not_finite, predicted: pairs
/// of class and count, for counts above 0), "bins" (samples, accuracy, confidence), "calibration_error", "worst"
/// (sample, label, predicted, loss, confidence, and picture: a PNG file in base64). picture() returns the PNG file of a
/// sample, or an empty text. If the function is empty, the report has no pictures.
[[nodiscard]] Json::Object json_of(const ClassReport& report, const std::vector<std::string>& names,
                                   const std::function<std::string(std::int64_t sample)>& picture = {});

/// Encodes bytes in base64 of RFC 4648, with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace lockstep::nn
