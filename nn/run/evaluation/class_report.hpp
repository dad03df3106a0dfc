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
/// kernels/prediction.hpp defines a sample's prediction; its confidence is the softmax at the prediction. A sample
/// whose logits have no softmax is not finite: it has no prediction, counts as wrong, and is in no bin.
struct ClassReport {
  /// Number of bins of confidence, as in Guo et al. 2017, "On Calibration of Modern Networks".
  static constexpr int kBins = 15;
  static constexpr int kMostClasses = 4096;  ///< limit, because the counts take classes^2 * 8 bytes

  struct Bin {  ///< bin b: samples with b / kBins < confidence <= (b + 1) / kBins
    std::int64_t samples = 0;
    std::int64_t correct = 0;
    std::int64_t confidence = 0;  ///< sum of confidences, in units of 2^-32
  };
  struct Sample {
    std::int64_t id = 0;  ///< index of the sample in the data set
    std::int32_t label = 0;
    std::int32_t predicted = 0;  ///< predicted class; -1: the sample is not finite
    double loss = 0;             ///< -log softmax at the label; infinite if the sample is not finite
    double confidence = 0;       ///< softmax at the prediction; 0 without a prediction
  };

  int classes = 0;
  std::vector<std::int64_t> confusion{};   ///< (classes, classes): row label, column prediction
  std::vector<std::int64_t> not_finite{};  ///< number of samples that are not finite, by label
  std::array<Bin, kBins> bins{};
  std::size_t most_worst = 0;   ///< number of samples that `worst` keeps
  std::vector<Sample> worst{};  ///< samples of greatest loss, in this order; of equal losses the smaller ids

  ClassReport() = default;
  /// Makes empty counts. UsageError unless 1 <= classes <= kMostClasses.
  ClassReport(int classes, std::size_t most_worst);

  /// Counts a sample with logits (classes). Does not count a label out of range: the code that computes the loss
  /// reports it.
  void add(std::int64_t id, std::int32_t label, std::span<const double> logits);
  /// Adds the counts of other samples of the same classes.
  void add(const ClassReport& other);
  /// Puts a sample among the worst, if it belongs there.
  void keep(const Sample& sample);

  [[nodiscard]] std::int64_t count(int label, int predicted) const {
    return confusion[static_cast<std::size_t>(label) * static_cast<std::size_t>(classes) +
                     static_cast<std::size_t>(predicted)];
  }
  [[nodiscard]] std::int64_t samples() const;              ///< samples that are not finite included
  [[nodiscard]] std::int64_t samples_of(int label) const;  ///< samples that are not finite included
  [[nodiscard]] double accuracy_of(int label) const;       ///< NaN for a class without samples
  [[nodiscard]] std::int64_t all_not_finite() const;
  /// Returns the mean over the bins of |accuracy - mean confidence|, weighted by their samples; NaN without a finite
  /// sample.
  [[nodiscard]] double calibration_error() const;
  /// Returns the least accuracy of the classes that have samples; NaN without any.
  [[nodiscard]] double worst_class_accuracy() const;
};

/// Returns the name of a class for people: `names[label]`, or the number if there is no name.
[[nodiscard]] std::string class_name(const std::vector<std::string>& names, int label);

/// Returns lines for a terminal: the confusion matrix of up to 12 classes, else the ten classes of least accuracy, each
/// with the class that it is most often taken for; then the calibration error, and how many samples are not finite.
[[nodiscard]] std::string text_of(const ClassReport& report, const std::vector<std::string>& names);

/// Returns the report as evaluation.json holds it: "classes" (name, samples, correct, not_finite, predicted: pairs of
/// class and count, those above 0), "bins" (samples, accuracy, confidence), "calibration_error", "worst" (sample,
/// label, predicted, loss, confidence, and picture: a PNG file in base64). picture: returns the PNG file of a sample,
/// or empty; an empty function: no pictures.
[[nodiscard]] Json::Object json_of(const ClassReport& report, const std::vector<std::string>& names,
                                   const std::function<std::string(std::int64_t sample)>& picture = {});

/// Encodes bytes in base64 of RFC 4648, with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace lockstep::nn
