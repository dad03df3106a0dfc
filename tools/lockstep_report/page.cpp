#include "tools/lockstep_report/page.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "tools/lockstep_report/quantities.hpp"

namespace lockstep::tools {
namespace {

constexpr std::size_t kMostPoints = 1000;  // greatest number of points of a curve, about two per pixel

/// Fields for which the page draws no curve of the values per epoch. Another curve shows the field's values per step,
/// or the table shows the field.
constexpr std::array<std::string_view, 6> kNoCurve{"comm_exposed_s", "seconds",    "skipped_updates",
                                                   "gradient_bytes", "sent_bytes", "peak_bytes"};

/// Returns the quantities of all runs, in the order of their charts.
std::vector<std::string> fields_of(const std::vector<RunLog>& runs) {
  std::set<std::string> all;
  for (const RunLog& run : runs) {
    for (const auto& [field, points] : run.reports) {
      all.insert(field);
    }
    for (const auto& [field, points] : run.epochs) {
      if (std::ranges::find(kNoCurve, field) == kNoCurve.end()) {
        all.insert(field.starts_with(kTest) ? field.substr(kTest.size()) : field);
      }
    }
  }
  return in_order(std::move(all));
}

/// Adds a curve of the values of `field`; does nothing if the field has no values. Curves of training are thin.
void add_curve(Panel& chart, const std::map<std::string, Points>& values, const std::string& field, double factor,
               const std::string& run, int colour, bool evaluation) {
  const auto found = values.find(field);
  if (found == values.end() || found->second.empty()) {
    return;
  }
  Curve curve{.label = run + (evaluation ? ", evaluation" : ", training"), .colour = colour};
  PlotPoints& points = evaluation || found->second.size() == 1 ? curve.dots : curve.line;
  for (const Point& p : thinned(found->second, kMostPoints)) {
    points.emplace_back(static_cast<double>(p.step), p.value * factor);
  }
  chart.curves.push_back(std::move(curve));
}

std::string cell(const std::string& text) {
  return "<td>" + escaped(text) + "</td>";
}

/// Returns the last value of `field` as text; an empty text if the field has no value.
std::string last_of(const std::map<std::string, Points>& values, const std::string& field, double factor = 1,
                    const char* unit = "") {
  const auto found = values.find(field);
  return found == values.end() || found->second.empty() ? "" : brief(found->second.back().value * factor) + unit;
}

/// Returns the median of `field` over the run's reports as text; an empty text if no report has the field.
std::string median_of(const RunLog& run, const std::string& field, double factor = 1) {
  const auto found = run.reports.find(field);
  if (found == run.reports.end() || found->second.empty()) {
    return "";
  }
  Points points = found->second;
  const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
  std::ranges::nth_element(points, middle, {}, &Point::value);
  return brief(middle->value * factor);
}

std::string end_of(const RunLog& run) {
  if (!run.exit_code) {
    return "not told: it runs, or was killed";
  }
  switch (*run.exit_code) {
    case exit_code::kFinished:
      return "finished";
    case exit_code::kStopped:
      return "stopped; can be resumed";
    case exit_code::kWatchdog:
      return "ended by the watchdog";
    default:
      return concat("failed, exit code ", *run.exit_code);
  }
}

/// Returns the noun that a rate counts: "images" for "images_per_second".
std::string counted_by(const std::string& field) {
  return field.substr(0, field.size() - kPerSecond.size());
}

/// Returns the median rate of the reports: "590 images/s".
std::string rate_of(const RunLog& run) {
  for (const auto& [field, points] : run.reports) {
    if (field.ends_with(kPerSecond)) {
      return median_of(run, field) + " " + counted_by(field) + "/s";
    }
  }
  return "";
}

/// Returns a table with a row for each run; columns that are empty in every row are left out.
std::string table_of(const std::vector<RunLog>& runs) {
  using Column = std::pair<const char*, std::function<std::string(const RunLog&)>>;
  const std::vector<Column> columns{
      {"end", end_of},
      {"steps", [](const RunLog& run) { return std::to_string(run.steps); }},
      {"time", [](const RunLog& run) { return run.seconds > 0 ? seconds_text(run.seconds) : ""; }},
      {"test loss", [](const RunLog& run) { return last_of(run.epochs, "test_loss"); }},
      {"test accuracy", [](const RunLog& run) { return last_of(run.epochs, "test_accuracy", 100, " %"); }},
      {"best", [](const RunLog& run) { return run.best ? run.best_by + " " + brief(*run.best) : ""; }},
      {"throughput (median)", rate_of},
      {"exposed, ms a step (median)", [](const RunLog& run) { return median_of(run, "comm_exposed_s", 1e3); }},
      {"memory, at most",
       [](const RunLog& run) {
         const auto peak = run.epochs.find("peak_bytes");
         return peak == run.epochs.end() || peak->second.empty() ? "" : bytes_text(peak->second.back().value);
       }},
      {"resumed", [](const RunLog& run) {
         const std::size_t times = run.resumed_after.size();
         return times == 0 ? std::string() : times == 1 ? "once" : concat(times, " times");
       }}};
  std::string head = "<tr><th>run</th>";
  std::vector<std::string> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    rows.push_back(
        concat("<tr><td><span class=\"key c", i % kSvgColours, "\"></span>", escaped(runs[i].name), "</td>"));
  }
  for (const auto& [title, text_of] : columns) {
    if (std::ranges::all_of(runs, [&of = text_of](const RunLog& run) { return of(run).empty(); })) {
      continue;
    }
    head += concat("<th>", title, "</th>");
    for (std::size_t i = 0; i < runs.size(); ++i) {
      rows[i] += cell(text_of(runs[i]));
    }
  }
  std::string out = "<table>" + head + "</tr>\n";
  for (const std::string& row : rows) {
    out += row + "</tr>\n";
  }
  return out + "</table>\n";
}

/// Returns a setting with its numbers in the fewest digits that read back the same: 0.1 for 0.10000000000000001. The
/// file config.json of a run has numbers with 17 digits.
std::string shortened(const std::string& value) {
  constexpr std::size_t kLong = 17;
  std::string out;
  for (std::size_t begin = 0, end = 0; begin <= value.size(); begin = end + 1) {
    end = std::min(value.find(' ', begin), value.size());
    const std::string word = value.substr(begin, end - begin);
    double number = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_number = error == std::errc() && rest == word.data() + word.size();
    out += (begin > 0 ? " " : "") +
           (is_number && word.size() > kLong && word.find('.') != std::string::npos ? exact_text(number) : word);
  }
  return out;
}

std::string settings_of(const std::vector<RunLog>& runs) {
  std::set<std::string> names;
  for (const RunLog& run : runs) {
    for (const auto& [name, value] : run.settings) {
      names.insert(name);
    }
  }
  const bool known = !names.empty();
  const auto value_of = [](const RunLog& run, const std::string& name) {
    const auto found = run.settings.find(name);
    return found == run.settings.end() ? std::string() : found->second;
  };
  if (runs.size() > 1) {
    std::erase_if(names, [&](const std::string& name) {
      return std::ranges::all_of(runs,
                                 [&](const RunLog& run) { return value_of(run, name) == value_of(runs[0], name); });
    });
  }
  if (names.empty()) {
    return known && runs.size() > 1 ? "<p>No setting differs.</p>\n" : "";
  }
  std::string out = concat("<h2>", runs.size() > 1 ? "Settings that differ" : "Settings",
                           "</h2>\n<table class=\"settings\"><tr><th></th>");
  for (const RunLog& run : runs) {
    out += "<th>" + escaped(run.name) + "</th>";
  }
  out += "</tr>\n";
  for (const std::string& name : names) {
    out += "<tr>" + cell(name);
    for (const RunLog& run : runs) {
      const std::string value = shortened(value_of(run, name));
      out += cell(value.empty() ? "-" : value);
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

/// Style rules of the page, in addition to kSvgStyle.
constexpr const char* kStyle =
    R"(:root { color-scheme: light dark; --text: #1c1c1c; --quiet: #5f6368; --grid: #e3e5e8; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --quiet: #a0a4a8; --grid: #3a3d41; --page: #17191c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 2em auto; max-width: 1180px; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin: 1.6em 0 .4em; }
table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { text-align: left; white-space: nowrap; padding: .25em .9em .25em 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; } .settings td + td { white-space: normal; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 0 2em; }
figure { margin: 0; } figcaption { font-weight: 600; margin: 1.2em 0 .2em; } .note { color: var(--quiet); font-size: .85em; margin: 0; }
svg { width: 100%; height: auto; }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 50%; background: currentColor; margin-right: .5em; }
.confusion td, .confusion th + th { text-align: right; padding: .25em .5em; }
.long-names tr:first-child th + th { writing-mode: vertical-rl; text-align: left; } .bars td:nth-child(2) { width: 60%; min-width: 10em; }
.bar { height: .9em; background: currentColor; opacity: .7; } .calibration svg { max-width: 284px; }
.worst { display: flex; flex-wrap: wrap; gap: .8em; } .worst figure { width: 96px; } .worst img { width: 96px; image-rendering: pixelated; }
@media (max-width: 600px) { .charts > figure:not(.calibration) svg text { font-size: 16px; } }
)";

}  // namespace

Points thinned(const Points& points, std::size_t most) {
  if (points.size() <= most) {
    return points;
  }
  const std::size_t ranges = std::max<std::size_t>(most / 2, 1);
  const double first = static_cast<double>(points.front().step);
  const double width = (static_cast<double>(points.back().step) - first + 1) / static_cast<double>(ranges);
  Points kept;
  std::size_t begin = 0;
  for (std::size_t range = 0; range < ranges && begin < points.size(); ++range) {
    const double end = first + width * static_cast<double>(range + 1);
    std::size_t low = begin;
    std::size_t high = begin;
    std::size_t i = begin;
    for (; i < points.size() && (static_cast<double>(points[i].step) < end || range + 1 == ranges); ++i) {
      low = points[i].value < points[low].value ? i : low;
      high = points[i].value > points[high].value ? i : high;
    }
    if (i > begin) {
      kept.push_back(points[std::min(low, high)]);
      if (low != high) {
        kept.push_back(points[std::max(low, high)]);
      }
    }
    begin = i;
  }
  return kept;
}

std::vector<Panel> charts_of(const std::vector<RunLog>& runs) {
  std::vector<Panel> charts;
  for (const std::string& field : fields_of(runs)) {
    const Quantity quantity = quantity_of(field);
    Panel chart{.title = field.ends_with(kPerSecond) ? counted_by(field) + " a second" : std::string(quantity.title),
                .x = {.scale = Axis::Scale::counted, .name = "step"}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const RunLog& run = runs[i];
      const int colour = static_cast<int>(i);
      const std::size_t before = chart.curves.size();
      // A curve of the reports shows more than a curve of the epochs, whose values are means over the reports.
      add_curve(chart, run.reports.contains(field) ? run.reports : run.epochs, field, quantity.factor, run.name, colour,
                false);
      for (const auto* values : {&run.reports, &run.epochs}) {
        add_curve(chart, *values, std::string(kTest) + field, quantity.factor, run.name, colour, true);
      }
      for (const std::int64_t step : run.resumed_after) {
        if (chart.curves.size() > before) {  // the chart shows a curve of this run
          chart.marks.push_back({.label = concat(run.name, ": resumed after step ", step),
                                 .value = static_cast<double>(step),
                                 .colour = colour});
        }
      }
    }
    charts.push_back(std::move(chart));
  }
  return charts;
}

std::string page_of(const std::vector<RunLog>& runs) {
  const std::string title = runs.size() == 1 ? runs[0].name : concat(runs.size(), " runs");
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width\"/>\n<title>" +
      escaped(title) + "</title>\n<style>" + kSvgStyle + kStyle + "</style></head><body>\n<h1>" + escaped(title) +
      "</h1>\n" + table_of(runs) + "<div class=\"charts\">\n";
  for (const Panel& chart : charts_of(runs)) {
    out += "<figure><figcaption>" + escaped(chart.title) + "</figcaption>\n" + draw(chart);
    if (std::ranges::any_of(chart.curves, [](const Curve& c) { return c.label.ends_with(", evaluation"); })) {
      out += "<p class=\"note\">thick line: evaluation; thin line: training</p>\n";
    }
    out += "</figure>\n";
  }
  out += "</div>\n";
  for (const RunLog& run : runs) {
    if (const auto gaps = run.gaps.find("loss"); gaps != run.gaps.end() && !gaps->second.empty()) {
      out += "<p class=\"note\">" + escaped(concat(run.name, ": ", gaps->second.size(), " losses are not finite.")) +
             "</p>\n";
    }
  }
  for (const RunLog& run : runs) {
    if (run.evaluation) {
      out += draw(*run.evaluation, run.name);
    }
  }
  return out + settings_of(runs) + "</body></html>\n";
}

}  // namespace lockstep::tools
