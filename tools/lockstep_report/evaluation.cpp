#include "tools/lockstep_report/evaluation.hpp"

#include <algorithm>
#include <cstddef>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tools/svg/svg.hpp"

namespace lockstep::tools {
namespace {

constexpr std::size_t kMostClasses = 4096;
constexpr std::size_t kMostBins = 1000;
constexpr std::size_t kMostWorst = 1000;
constexpr std::size_t kShown = 30;  // greatest number of classes, and of confusions, that the page shows

std::int64_t count_in(const Json& json, const std::string& key, const std::string& source) {
  const auto count = json.get<std::int64_t>(key, source);
  require<DataError>(count >= 0, source, ": ", key, " is ", count, ", expected at least 0");
  return count;
}

/// Returns the number `key` of `json`; nullopt for null. evaluation.json has null for NaN and infinity, which JSON
/// cannot hold.
std::optional<double> number_in(const Json& json, const std::string& key, const std::string& source) {
  const Json& member = json.member(key, source);
  return member.is_null() ? std::nullopt : std::optional(member.as<double>(source + ": " + key));
}

Json::Array list_in(const Json& json, const std::string& key, std::size_t most, const std::string& source) {
  auto list = json.get<Json::Array>(key, source);
  require<DataError>(list.size() <= most, source, ": ", list.size(), ' ', key, ", expected at most ", most);
  return list;
}

std::int64_t class_of(const Json& json, std::size_t classes, const std::string& source) {
  const auto index = json.as<std::int64_t>(source);
  require<DataError>(index >= 0 && index < static_cast<std::int64_t>(classes), source, " is ", index,
                     ", expected 0 to ", classes - 1);
  return index;
}

Evaluation::Class class_in(const Json& json, std::size_t classes, const std::string& source) {
  Evaluation::Class one{.name = json.get<std::string>("name", source),
                        .samples = count_in(json, "samples", source),
                        .correct = count_in(json, "correct", source),
                        .not_finite = count_in(json, "not_finite", source)};
  std::int64_t left = one.samples;
  const auto take = [&](std::int64_t count) {
    require<DataError>(count <= left, source, ": has more predictions than samples, expected ", one.samples,
                       " of them");
    left -= count;
  };
  take(one.not_finite);
  for (const Json& item : list_in(json, "predicted", classes, source)) {
    const auto pair = item.as<Json::Array>(source + ": predicted");
    require<DataError>(pair.size() == 2, source, ": predicted has ", pair.size(),
                       " numbers, expected 2, a class and a count");
    const std::int64_t count = pair[1].as<std::int64_t>(source + ": predicted");
    require<DataError>(count > 0, source, ": predicted has a count of ", count, ", expected more than 0");
    take(count);
    one.predicted.emplace_back(class_of(pair[0], classes, source + ": predicted"), count);
  }
  require<DataError>(left == 0 && one.correct <= one.samples, source, ": ", one.samples - left, " predictions, ",
                     one.correct, " of them correct, expected a prediction for each of the ", one.samples, " samples");
  return one;
}

bool is_base64(const std::string& text) {
  return text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
         std::string::npos;
}

std::string percent(double fraction) {
  return digits(100 * fraction, 1) + " %";
}

/// Returns the indices of the classes that have samples; the least accurate class comes first.
std::vector<std::size_t> by_accuracy(const Evaluation& e) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < e.classes.size(); ++i) {
    if (e.classes[i].samples > 0) {
      order.push_back(i);
    }
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return e.classes[i].accuracy(); });
  return order;
}

std::string matrix_of(const Evaluation& e) {
  constexpr std::size_t kShort = 3;  // greatest length of a name that stands upright above its column
  const bool upright = std::ranges::all_of(e.classes, [](const auto& one) { return one.name.size() <= kShort; });
  std::string out = concat("<table class=\"confusion", upright ? "" : " long-names", "\"><tr><th>label</th>");
  for (const Evaluation::Class& one : e.classes) {
    out += "<th>" + escaped(one.name) + "</th>";
  }
  const bool gaps = std::ranges::any_of(e.classes, [](const auto& one) { return one.not_finite > 0; });
  out += gaps ? "<th>not finite</th></tr>\n" : "</tr>\n";
  for (std::size_t label = 0; label < e.classes.size(); ++label) {
    const Evaluation::Class& one = e.classes[label];
    std::vector<std::int64_t> counts(e.classes.size());
    for (const auto& [predicted, count] : one.predicted) {
      counts[static_cast<std::size_t>(predicted)] += count;
    }
    out += "<tr><th>" + escaped(one.name) + "</th>";
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double share = counts[i] == 0 ? 0 : static_cast<double>(counts[i]) / static_cast<double>(one.samples);
      const char* colour = i == label ? "0,114,178" : "213,94,0";
      out += concat("<td style=\"background:rgba(", colour, ",", digits(share, 2), ")\">",
                    counts[i] == 0 ? std::string() : std::to_string(counts[i]), "</td>");
    }
    out += gaps ? concat("<td>", one.not_finite, "</td></tr>\n") : "</tr>\n";
  }
  return out + "</table>\n<p class=\"note\">row: label; column: prediction; shade: share of the row</p>\n";
}

std::string confusions_of(const Evaluation& e) {
  struct Confusion {
    std::int64_t count;
    std::size_t label;
    std::int64_t predicted;
  };
  std::vector<Confusion> all;
  for (std::size_t label = 0; label < e.classes.size(); ++label) {
    for (const auto& [predicted, count] : e.classes[label].predicted) {
      if (predicted != static_cast<std::int64_t>(label)) {
        all.push_back({count, label, predicted});
      }
    }
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &Confusion::count);
  all.resize(std::min(all.size(), kShown));
  std::string out = "<table><tr><th>label</th><th>taken for</th><th>samples</th><th>of</th></tr>\n";
  for (const Confusion& each : all) {
    const Evaluation::Class& one = e.classes[each.label];
    out += concat("<tr><td>", escaped(one.name), "</td><td>",
                  escaped(e.classes[static_cast<std::size_t>(each.predicted)].name), "</td><td>", each.count,
                  "</td><td>", one.samples, "</td></tr>\n");
  }
  return out +
         concat("</table>\n<p class=\"note\">the most frequent confusions of ", e.classes.size(), " classes</p>\n");
}

std::string bars_of(const Evaluation& e) {
  std::vector<std::size_t> order = by_accuracy(e);
  const bool cut = order.size() > kShown;
  order.resize(std::min(order.size(), kShown));
  std::string out = "<table class=\"bars\">\n";
  for (const std::size_t i : order) {
    const Evaluation::Class& one = e.classes[i];
    out += concat("<tr><th>", escaped(one.name),
                  "</th><td><div class=\"bar c0\" style=\"width:", digits(100 * one.accuracy(), 1),
                  "%\"></div></td><td>", percent(one.accuracy()), " of ", one.samples, "</td></tr>\n");
  }
  return out + "</table>\n" + (cut ? "<p class=\"note\">the classes of least accuracy</p>\n" : "");
}

std::string calibration_of(const Evaluation& e) {
  constexpr double kLeft = 46;
  constexpr double kTop = 24;
  constexpr double kSide = 220;
  const auto x = [&](double confidence) { return kLeft + kSide * confidence; };
  const auto y = [&](double accuracy) { return kTop + kSide * (1 - accuracy); };
  std::string out = begin_svg(kLeft + kSide + 18, kTop + kSide + 38, "calibration") + text_at(0, 12, "accuracy, %");
  for (const double tick : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    out += line_at(x(0), y(tick), x(1), y(tick), "grid") + text_at(kLeft - 6, y(tick) + 4, brief(100 * tick), kEnd) +
           text_at(x(tick), kTop + kSide + 16, brief(100 * tick), kMiddle);
  }
  const double width = 1 / static_cast<double>(std::max<std::size_t>(e.bins.size(), 1));
  for (std::size_t b = 0; b < e.bins.size(); ++b) {
    const Evaluation::Bin& bin = e.bins[b];
    if (bin.samples > 0) {
      out += rect_at(x(static_cast<double>(b) * width), y(bin.accuracy), kSide * width - 1, kSide * bin.accuracy,
                     "class=\"c0\" fill=\"currentColor\" fill-opacity=\"0.6\"",
                     concat(bin.samples, " samples, confidence ", percent(bin.confidence), ", accuracy ",
                            percent(bin.accuracy))) +
             dot_at(x(bin.confidence), y(bin.accuracy), 1);
    }
  }
  out +=
      line_at(x(0), y(0), x(1), y(1), "mark c7") + text_at(x(1), kTop + kSide + 32, "confidence, %", kEnd) + "</svg>\n";
  return out + concat(
                   "<p class=\"note\">bar: accuracy of the samples with this confidence; dot: mean confidence of these "
                   "samples; ",
                   "dotted line: accuracy equals confidence. Expected calibration error ",
                   e.calibration_error ? digits(*e.calibration_error, 4) : std::string("not known"), "</p>\n");
}

std::string worst_of(const Evaluation& e) {
  std::string out = "<div class=\"worst\">\n";
  for (const Evaluation::Sample& sample : e.worst) {
    const auto name = [&](std::int64_t index) { return e.classes[static_cast<std::size_t>(index)].name; };
    out += "<figure>";
    if (!sample.picture.empty()) {
      out += concat("<img alt=\"sample ", sample.sample, "\" src=\"data:image/png;base64,", sample.picture, "\"/>");
    }
    out += concat("<p class=\"note\">sample ", sample.sample, ": ", escaped(name(sample.label)), ", taken for ",
                  sample.predicted ? escaped(name(*sample.predicted)) : std::string("nothing: not finite"), "; loss ",
                  sample.loss ? brief(*sample.loss) : std::string("infinite"), "</p></figure>\n");
  }
  return out + "</div>\n";
}

}  // namespace

Evaluation read_evaluation(const std::string& path) {
  const Json json = read_json(path);
  const auto format = json.get<std::int64_t>("format", path);
  require<DataError>(format == 1, path, ": format is ", format, ", expected 1");
  Evaluation e{.step = count_in(json, "step", path)};
  const Json::Array classes = list_in(json, "classes", kMostClasses, path);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    e.classes.push_back(class_in(classes[i], classes.size(), concat(path, ": class ", i)));
  }
  for (const Json& bin : list_in(json, "bins", kMostBins, path)) {
    const Evaluation::Bin& read =
        e.bins.emplace_back(Evaluation::Bin{.samples = count_in(bin, "samples", path),
                                            .accuracy = number_in(bin, "accuracy", path).value_or(0),
                                            .confidence = number_in(bin, "confidence", path).value_or(0)});
    require<DataError>(read.accuracy >= 0 && read.accuracy <= 1 && read.confidence >= 0 && read.confidence <= 1, path,
                       ": a bin has accuracy ", read.accuracy, " and confidence ", read.confidence,
                       ", expected 0 to 1");
  }
  e.calibration_error = number_in(json, "calibration_error", path);
  for (const Json& item : list_in(json, "worst", kMostWorst, path)) {
    Evaluation::Sample& sample = e.worst.emplace_back();
    sample.sample = count_in(item, "sample", path);
    sample.label = class_of(item.member("label", path), classes.size(), path + ": label");
    if (const Json& predicted = item.member("predicted", path); !predicted.is_null()) {
      sample.predicted = class_of(predicted, classes.size(), path + ": predicted");
    }
    sample.loss = number_in(item, "loss", path);
    if (item.has("picture")) {
      sample.picture = item.get<std::string>("picture", path);
      require<DataError>(is_base64(sample.picture), path, ": the picture of sample ", sample.sample, " is ",
                         printable(sample.picture), ", expected base64");
    }
  }
  return e;
}

std::string draw(const Evaluation& evaluation, const std::string& run) {
  if (evaluation.classes.empty()) {
    return "";
  }
  return "<h2>" + escaped(concat(run, ": evaluation after step ", evaluation.step)) +
         "</h2>\n<div class=\"charts\">\n<figure><figcaption>confusion</figcaption>\n" +
         (evaluation.classes.size() <= kShown ? matrix_of(evaluation) : confusions_of(evaluation)) +
         "</figure>\n<figure><figcaption>accuracy of classes</figcaption>\n" + bars_of(evaluation) +
         "</figure>\n<figure class=\"calibration\"><figcaption>calibration</figcaption>\n" +
         calibration_of(evaluation) + "</figure>\n<figure><figcaption>samples of greatest loss</figcaption>\n" +
         worst_of(evaluation) + "</figure>\n</div>\n";
}

}  // namespace lockstep::tools
