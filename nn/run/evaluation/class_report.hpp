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

/// Counts of a classifier's results on a test set: how often each class is predicted for each label, how well the
/// confidence agrees with the accuracy, and which samples have the largest loss. Counts and sums of confidence (in
/// units of 2^-32) are integers, so the report does not depend on how samples are divided over batches and ranks.
///
/// kernels/prediction.hpp defines the prediction of a sample. The confidence is the softmax value of the predicted
/// class. A sample whose logits have no softmax is called not finite: it has no prediction, counts as wrong, and is in
/// no bin.
struct ClassReport {
  /// Number of bins of confidence, as in Guo et al. 2017, "On Calibration of Modern Networks".
  static constexpr int kBins = 15;
  /// Largest number of classes. At this limit, `confusion` takes 128 MiB (classes^2 * 8 bytes).
  static constexpr int kMostClasses = 4096;

  struct Bin {  ///< bin b holds samples with b / kBins < confidence <= (b + 1) / kBins
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    std::int64_t confidence = 0;  ///< sum of confidences, in units of 2^-32
  };
  struct Sample {
    std::int64_t id = 0;  ///< index of the sample in the data set
    std::int32_t label = 0;
    std::int32_t predicted = 0;  ///< predicted class, or -1 if the sample is not finite
    double loss = 0;             ///< -log(softmax) of the label; infinite if the sample is not finite
    double confidence = 0;       ///< softmax of the predicted class; 0 if there is none
  };

  int classes = 0;
  /// Number of samples for each pair (label, predicted class); shape (classes, classes).
  std::vector<std::int64_t> confusion{};
  std::vector<std::int64_t> not_finite{};  ///< number of samples that are not finite, for each label
  std::array<Bin, kBins> bins{};
  std::size_t most_worst = 0;  ///< largest number of samples in `worst`
  /// Samples with the largest losses, largest first; of equal losses, the smaller id comes first.
  std::vector<Sample> worst{};

  ClassReport() = default;
  /// Makes a report with all counts 0. Throws UsageError unless 1 <= `classes` <= kMostClasses.
  ClassReport(int classes, std::size_t most_worst);

  /// Counts a sample by its logits, one per class. Ignores a sample whose label is out of range, because the loss call
  /// reports such labels.
  void add(std::int64_t id, std::int32_t label, std::span<const double> logits);
  /// Adds the counts of `other`, a report on other samples of the same classes.
  void add(const ClassReport& other);
  /// Adds `sample` to `worst` if its loss is among the most_worst largest so far.
  void keep(const Sample& sample);

  [[nodiscard]] std::int64_t count(int label, int predicted) const {
    return confusion[static_cast<std::size_t>(label) * static_cast<std::size_t>(classes) +
                     static_cast<std::size_t>(predicted)];
  }
  [[nodiscard]] std::int64_t samples() const;  ///< number of all samples, including those that are not finite
  [[nodiscard]] std::int64_t samples_of(int label) const;  ///< number of samples of a label, including those not finite
  [[nodiscard]] double accuracy_of(int label) const;       ///< accuracy of a class; NaN if it has no samples
  [[nodiscard]] std::int64_t all_not_finite() const;
  /// Returns the expected calibration error: the mean over the bins of |accuracy - mean confidence|, weighted by the
  /// number of samples in each bin. Returns NaN if no bin has a sample.
  [[nodiscard]] double calibration_error() const;
  /// Returns the lowest accuracy among the classes that have samples, or NaN if no class has samples.
  [[nodiscard]] double worst_class_accuracy() const;
};

/// Returns a readable name of a class: `names[label]`, or the label's number if `names` has no such entry.
[[nodiscard]] std::string class_name(const std::vector<std::string>& names, int label);

/// Returns lines for a terminal. With up to 12 classes, the lines show the confusion matrix. With more classes, they
/// show the ten classes of lowest accuracy, and for each the wrong class that is predicted most often. The calibration
/// error and the number of samples that are not finite follow.
[[nodiscard]] std::string text_of(const ClassReport& report, const std::vector<std::string>& names);

/// Returns the report as the JSON object of evaluation.json, with these keys:
/// - "classes": name, samples, correct, not_finite, and predicted: pairs of class and count, for counts above 0
/// - "bins": samples, accuracy, confidence
/// - "calibration_error"
/// - "worst": sample, label, predicted, loss, confidence, and picture: a PNG file in base64
/// picture() returns the PNG file of a sample, or an empty text. If `picture` is empty, the report has no pictures.
[[nodiscard]] Json::Object json_of(const ClassReport& report, const std::vector<std::string>& names,
                                   const std::function<std::string(std::int64_t sample)>& picture = {});

/// Encodes bytes in base64 (RFC 4648), with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace lockstep::nn
