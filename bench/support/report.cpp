// Besides json_lines.cpp the only file of the benchmarks that includes nlohmann-json: it is slow to compile.
#include "bench/support/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

constexpr double kNanoseconds = 1e9;
constexpr double kDoesNotApply = std::numeric_limits<double>::quiet_NaN();

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// The numbers of a context are numbers in the file.
nlohmann::ordered_json number_or_text(const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() || value.is_boolean() || value.is_array() ? nlohmann::ordered_json(value)
                                                                     : nlohmann::ordered_json(text);
}

double counter(const ReportLine& line, const std::string& name) {
  const auto found =
      std::find_if(line.counters.begin(), line.counters.end(), [&](const Counter& c) { return c.name == name; });
  return found == line.counters.end() ? kDoesNotApply : found->value;
}

void add_counters(nlohmann::ordered_json& entry, const std::vector<Counter>& counters) {
  for (const Counter& each : counters) {
    if (!std::isnan(each.value)) {
      entry[each.name] = each.value;
    }
  }
}

}  // namespace

ReportLine report_line(const std::string& name, const Line& line, int repetitions, int repetition) {
  const Samples& samples = line.measurement.samples;
  ReportLine out;
  out.name = out.run_name = name;
  out.repetitions = repetitions;
  out.repetition = repetition;
  out.iterations = static_cast<std::int64_t>(samples.seconds.size());
  out.real_seconds = samples.median();
  out.cpu_seconds = samples.cpu_seconds;
  const auto ns = [&](double percent) { return samples.percentile(percent).value_or(kDoesNotApply) * kNanoseconds; };
  out.counters = {{"p50_ns", ns(50)},
                  {"p95_ns", ns(95)},
                  {"p99_ns", ns(99)},
                  {"min_ns", samples.min() * kNanoseconds},
                  {"max_ns", samples.max() * kNanoseconds},
                  {"calls_per_iteration", static_cast<double>(samples.calls)},
                  {"ranks", static_cast<double>(samples.rank_medians.size())},
                  {"rank_spread", samples.rank_spread()}};
  if (line.measurement.payload_bytes > 0) {
    out.counters.push_back({"bytes", static_cast<double>(line.measurement.bytes)});
    out.counters.push_back({line.payload_name, line.measurement.payload_per_second(), true});
    out.counters.push_back({line.traffic_name,
                            line.measurement.traffic_bytes > 0 ? line.measurement.traffic_per_second() : kDoesNotApply,
                            true});
  }
  out.counters.insert(out.counters.end(), line.counters.begin(), line.counters.end());
  return out;
}

std::vector<ReportLine> aggregates(const std::vector<ReportLine>& runs) {
  using Statistic = std::function<double(const std::vector<double>&)>;
  const Statistic mean = [](const std::vector<double>& v) { return Samples{.seconds = v}.mean(); };
  const Statistic stddev = [](const std::vector<double>& v) { return Samples{.seconds = v}.stddev(); };
  const std::pair<const char*, Statistic> kinds[] = {
      {"mean", mean},
      {"median", [](const std::vector<double>& v) { return median_of(v); }},
      {"stddev", stddev},
      {"cv", [&](const std::vector<double>& v) { return stddev(v) / mean(v); }},
  };
  std::vector<ReportLine> lines;
  for (const auto& [kind, statistic] : kinds) {
    const auto over = [&, &statistic = statistic](const std::function<double(const ReportLine&)>& value) {
      std::vector<double> values;
      for (const ReportLine& run : runs) {
        values.push_back(value(run));
      }
      return statistic(values);
    };
    ReportLine line = runs.front();
    line.aggregate = kind;
    line.name = line.run_name + "_" + kind;
    line.iterations = static_cast<std::int64_t>(runs.size());
    line.real_seconds = over([](const ReportLine& run) { return run.real_seconds; });
    line.cpu_seconds = over([](const ReportLine& run) { return run.cpu_seconds; });
    for (Counter& each : line.counters) {
      each.value = over([&](const ReportLine& run) { return counter(run, each.name); });
    }
    lines.push_back(line);
  }
  return lines;
}

std::string report_json(const RunContext& context, const std::vector<ReportLine>& lines,
                        const std::vector<Conclusion>& conclusions) {
  nlohmann::ordered_json root;
  for (const auto& [name, value] : context) {
    root["context"][name] = number_or_text(value);
  }
  root["benchmarks"] = nlohmann::ordered_json::array();
  int family = -1;
  const std::string* previous = nullptr;
  for (const ReportLine& line : lines) {
    if (previous == nullptr || *previous != line.run_name) {
      ++family;
    }
    previous = &line.run_name;
    nlohmann::ordered_json entry;
    entry["name"] = line.name;
    entry["family_index"] = family;
    entry["per_family_instance_index"] = 0;
    entry["run_name"] = line.run_name;
    entry["run_type"] = line.aggregate.empty() ? "iteration" : "aggregate";
    entry["repetitions"] = line.repetitions;
    if (line.aggregate.empty()) {
      entry["repetition_index"] = line.repetition;
    }
    entry["threads"] = 1;
    const bool ratio = line.aggregate == "cv";
    if (!line.aggregate.empty()) {
      entry["aggregate_name"] = line.aggregate;
      entry["aggregate_unit"] = ratio ? "percentage" : "time";
    }
    entry["iterations"] = line.iterations;
    entry["real_time"] = line.real_seconds * (ratio ? 1 : kNanoseconds);
    entry["cpu_time"] = line.cpu_seconds * (ratio ? 1 : kNanoseconds);
    entry["time_unit"] = "ns";
    add_counters(entry, line.counters);
    root["benchmarks"].push_back(std::move(entry));
  }
  for (const Conclusion& each : conclusions) {
    nlohmann::ordered_json entry{{"name", each.name}, {"text", each.text}};
    add_counters(entry, each.counters);
    root["conclusions"].push_back(std::move(entry));
  }
  return root.dump(2) + "\n";
}

std::string time_text(double seconds) {
  constexpr std::pair<double, const char*> kUnits[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  if (std::isnan(seconds)) {
    return "n/a";
  }
  for (const auto& [unit, name] : kUnits) {
    if (seconds >= unit || unit == 1e-9) {
      const double value = seconds / unit;
      return format(value >= 99.95 ? "%.0f %s" : value >= 9.995 ? "%.1f %s" : "%.2f %s", value, name);
    }
  }
  return {};
}

std::string rate_text(double bytes_per_second) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1, "B/s"}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes_per_second >= unit) {
      return format("%.2f %s", bytes_per_second / unit, name);
    }
  }
  return format("%.2g B/s", bytes_per_second);
}

std::string console_heading(std::size_t name_width) {
  return format("%-*s %10s %10s %10s %10s %10s %7s", static_cast<int>(name_width), "benchmark", "median", "p95", "p99",
                "cpu", "iterations", "spread");
}

std::string console_row(const ReportLine& line, std::size_t name_width) {
  const auto percentile = [&](const char* name) { return time_text(counter(line, name) / kNanoseconds); };
  if (line.aggregate == "cv") {
    return format("%-*s %8.2f %%", static_cast<int>(name_width), line.name.c_str(), 100 * line.real_seconds);
  }
  std::string text = format("%-*s %10s %10s %10s %10s %10lld %7.2f", static_cast<int>(name_width), line.name.c_str(),
                            time_text(line.real_seconds).c_str(), percentile("p95_ns").c_str(),
                            percentile("p99_ns").c_str(), time_text(line.cpu_seconds).c_str(),
                            static_cast<long long>(line.iterations), counter(line, "rank_spread"));
  // What every line has stands in the columns, or in the file alone.
  const char* const known[] = {
      "p50_ns", "p95_ns", "p99_ns", "min_ns", "max_ns", "ranks", "bytes", "rank_spread", "calls_per_iteration"};
  for (const Counter& each : line.counters) {
    if (std::any_of(std::begin(known), std::end(known), [&](const char* name) { return each.name == name; })) {
      continue;
    }
    const bool time = each.name.ends_with("_ns");
    const std::string value = std::isnan(each.value)  ? "n/a"
                              : time                  ? time_text(each.value / kNanoseconds)
                              : each.bytes_per_second ? rate_text(each.value)
                                                      : format("%.4g", each.value);
    text += format(" %s=%s", each.name.c_str(), value.c_str());
  }
  return text;
}

}  // namespace lockstep::bench
