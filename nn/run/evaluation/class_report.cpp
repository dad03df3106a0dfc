#include <lockstep/nn/run/evaluation/class_report.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include <lockstep/kernels/prediction.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

constexpr double kUnit = 0x1p32;    // confidences are summed as integers in units of 1 / kUnit
constexpr int kMostInTable = 12;    // largest number of classes for which the confusion matrix is printed
constexpr int kShownClasses = 10;   // number of classes printed instead of the matrix: those with the lowest accuracy
constexpr std::size_t kWidth = 16;  // largest width of a printed class name, in bytes

bool before(const ClassReport::Sample& a, const ClassReport::Sample& b) {
  return a.loss != b.loss ? a.loss > b.loss : a.id < b.id;
}

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Cuts a text to `width` bytes, or fills it with spaces to `width` bytes. The spaces are on the left if `right` is
/// true, and on the right otherwise.
std::string cell(const std::string& text, std::size_t width, bool right = true) {
  if (text.size() > width) {
    return text.substr(0, width);
  }
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

/// Formats `fraction` as a percentage, such as "93.2 %". NaN becomes "-".
std::string percent(double fraction) {
  return std::isnan(fraction) ? "-" : digits(100 * fraction, 1) + " %";
}

std::string matrix_text(const ClassReport& report, const std::vector<std::string>& names) {
  std::size_t first = 5;
  std::size_t width = 1;
  for (int label = 0; label < report.classes; ++label) {
    first = std::max(first, std::min(kWidth, class_name(names, label).size()));
    for (int predicted = 0; predicted < report.classes; ++predicted) {
      width = std::max(width, std::to_string(report.count(label, predicted)).size());
    }
  }
  width = std::max<std::size_t>(width, 4) + 1;
  std::string text = concat("  ", cell("label", first, false), " taken for\n  ", std::string(first, ' '));
  for (int predicted = 0; predicted < report.classes; ++predicted) {
    text += " " + cell(class_name(names, predicted), width - 1);
  }
  text += "  accuracy\n";
  for (int label = 0; label < report.classes; ++label) {
    text += "  " + cell(class_name(names, label), first, false);
    for (int predicted = 0; predicted < report.classes; ++predicted) {
      text += cell(std::to_string(report.count(label, predicted)), width);
    }
    text += cell(percent(report.accuracy_of(label)), 10) + "\n";
  }
  return text;
}

std::string worst_text(const ClassReport& report, const std::vector<std::string>& names) {
  std::vector<int> order;
  for (int label = 0; label < report.classes; ++label) {
    if (report.samples_of(label) > 0) {
      order.push_back(label);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return report.accuracy_of(a) < report.accuracy_of(b); });
  order.resize(std::min(order.size(), at(kShownClasses)));
  std::string text = concat("  the ", order.size(), " classes of least accuracy, of ", report.classes, '\n');
  for (const int label : order) {
    int taken = -1;  // wrong class that is predicted most often for samples of `label`
    for (int other = 0; other < report.classes; ++other) {
      if (other != label && report.count(label, other) > (taken < 0 ? 0 : report.count(label, taken))) {
        taken = other;
      }
    }
    text += concat("  ", cell(class_name(names, label), kWidth, false), cell(percent(report.accuracy_of(label)), 9),
                   " of ", report.samples_of(label));
    if (taken >= 0) {
      text += concat(", ", report.count(label, taken), " taken for ", class_name(names, taken));
    }
    text += '\n';
  }
  return text;
}

}  // namespace

ClassReport::ClassReport(int classes_given, std::size_t most_worst_given)
    : classes(classes_given), most_worst(most_worst_given) {
  require<UsageError>(classes >= 1 && classes <= kMostClasses, "class report: ", classes, " classes, expected 1 to ",
                      kMostClasses);
  confusion.resize(at(classes) * at(classes));
  not_finite.resize(at(classes));
}

void ClassReport::add(std::int64_t id, std::int32_t label, std::span<const double> logits) {
  require<ShapeError>(logits.size() == at(classes), "class report: ", logits.size(), " logits, expected ", classes);
  if (label < 0 || label >= classes) {
    return;
  }
  const auto best = ops::predict(classes, [&](std::int64_t k) { return logits[static_cast<std::size_t>(k)]; });
  if (!best.defined) {
    ++not_finite[at(label)];
    keep({.id = id, .label = label, .predicted = -1, .loss = std::numeric_limits<double>::infinity()});
    return;
  }
  double total = 0;
  for (const double logit : logits) {
    total += std::exp(logit - best.largest);
  }
  const auto predicted = static_cast<int>(best.index);
  const double confidence = 1 / total;
  ++confusion[at(label) * at(classes) + at(predicted)];
  Bin& bin = bins[at(std::clamp(static_cast<int>(std::ceil(confidence * kBins)) - 1, 0, kBins - 1))];
  ++bin.samples;
  bin.correct += predicted == label ? 1 : 0;
  bin.confidence += std::llround(confidence * kUnit);
  keep({.id = id,
        .label = label,
        .predicted = predicted,
        .loss = std::log(total) - (logits[at(label)] - best.largest),
        .confidence = confidence});
}

void ClassReport::keep(const Sample& sample) {
  if (worst.size() == most_worst && (most_worst == 0 || !before(sample, worst.back()))) {
    return;
  }
  worst.insert(std::upper_bound(worst.begin(), worst.end(), sample, before), sample);
  if (worst.size() > most_worst) {
    worst.pop_back();
  }
}

void ClassReport::add(const ClassReport& other) {
  require<UsageError>(other.classes == classes, "class report: the other report is of ", other.classes,
                      " classes, expected ", classes);
  const auto plus = [](std::vector<std::int64_t>& sum, const std::vector<std::int64_t>& more) {
    std::transform(sum.begin(), sum.end(), more.begin(), sum.begin(), std::plus<>());
  };
  plus(confusion, other.confusion);
  plus(not_finite, other.not_finite);
  for (std::size_t b = 0; b < bins.size(); ++b) {
    bins[b].samples += other.bins[b].samples;
    bins[b].correct += other.bins[b].correct;
    bins[b].confidence += other.bins[b].confidence;
  }
  std::for_each(other.worst.begin(), other.worst.end(), [this](const Sample& sample) { keep(sample); });
}

std::int64_t ClassReport::samples() const {
  return std::accumulate(confusion.begin(), confusion.end(), all_not_finite());
}

std::int64_t ClassReport::samples_of(int label) const {
  const auto row = confusion.begin() + static_cast<std::ptrdiff_t>(label) * classes;
  return std::accumulate(row, row + classes, not_finite[at(label)]);
}

double ClassReport::accuracy_of(int label) const {
  return mean_of(static_cast<double>(count(label, label)), static_cast<double>(samples_of(label)));
}

std::int64_t ClassReport::all_not_finite() const {
  return std::accumulate(not_finite.begin(), not_finite.end(), std::int64_t{0});
}

double ClassReport::calibration_error() const {
  double error = 0;
  double all = 0;
  for (const Bin& bin : bins) {
    error += std::abs(static_cast<double>(bin.correct) - static_cast<double>(bin.confidence) / kUnit);
    all += static_cast<double>(bin.samples);
  }
  return mean_of(error, all);
}

double ClassReport::worst_class_accuracy() const {
  double worst_of_all = std::numeric_limits<double>::infinity();
  for (int label = 0; label < classes; ++label) {
    if (samples_of(label) > 0) {
      worst_of_all = std::min(worst_of_all, accuracy_of(label));
    }
  }
  return std::isinf(worst_of_all) ? std::numeric_limits<double>::quiet_NaN() : worst_of_all;
}

std::string class_name(const std::vector<std::string>& names, int label) {
  return at(label) < names.size() ? displayed(names[at(label)]) : std::to_string(label);
}

std::string text_of(const ClassReport& report, const std::vector<std::string>& names) {
  std::string text = report.classes <= kMostInTable ? matrix_text(report, names) : worst_text(report, names);
  text += concat("  calibration error ", digits(report.calibration_error(), 4), " (", ClassReport::kBins, " bins)\n");
  if (const std::int64_t count = report.all_not_finite(); count > 0) {
    text += concat("  ", count, " of ", report.samples(),
                   " samples have outputs that are not finite: they count as wrong\n");
  }
  return text;
}

Json::Object json_of(const ClassReport& report, const std::vector<std::string>& names,
                     const std::function<std::string(std::int64_t sample)>& picture) {
  Json::Array classes;
  for (int label = 0; label < report.classes; ++label) {
    Json::Array predicted;
    for (int other = 0; other < report.classes; ++other) {
      if (report.count(label, other) > 0) {
        predicted.emplace_back(Json::Array{other, report.count(label, other)});
      }
    }
    classes.push_back(Json::Object{{"name", class_name(names, label)},
                                   {"samples", report.samples_of(label)},
                                   {"correct", report.count(label, label)},
                                   {"not_finite", report.not_finite[at(label)]},
                                   {"predicted", std::move(predicted)}});
  }
  Json::Array bins;
  for (const ClassReport::Bin& bin : report.bins) {
    // With 0 samples, the means below are NaN, which JSON shows as null.
    const auto samples = static_cast<double>(bin.samples);
    bins.push_back(Json::Object{{"samples", bin.samples},
                                {"accuracy", mean_of(static_cast<double>(bin.correct), samples)},
                                {"confidence", mean_of(static_cast<double>(bin.confidence) / kUnit, samples)}});
  }
  Json::Array worst;
  for (const ClassReport::Sample& sample : report.worst) {
    Json::Object entry{{"sample", sample.id},
                       {"label", sample.label},
                       {"predicted", sample.predicted < 0 ? Json() : Json(sample.predicted)},
                       {"loss", sample.loss},
                       {"confidence", sample.confidence}};
    if (picture) {
      if (const std::string png = picture(sample.id); !png.empty()) {
        entry["picture"] = base64(std::as_bytes(std::span(png)));
      }
    }
    worst.emplace_back(std::move(entry));
  }
  return {{"classes", std::move(classes)},
          {"bins", std::move(bins)},
          {"calibration_error", report.calibration_error()},
          {"worst", std::move(worst)}};
}

std::string base64(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < count ? std::to_integer<std::uint32_t>(bytes[i + j]) : 0);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace lockstep::nn
