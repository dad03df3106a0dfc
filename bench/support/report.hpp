#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/runner.hpp"

namespace lockstep::bench {

/// One entry of "benchmarks" in Google Benchmark's JSON. Times in seconds.
struct ReportLine {
  std::string name;
  std::string run_name;   ///< the name without what an aggregate adds
  std::string aggregate;  ///< "", or "mean", "median", "stddev", "cv" over the repetitions
  int repetitions = 1;
  int repetition = 0;
  std::int64_t iterations = 0;
  double real_seconds = 0;  ///< the median over the iterations; for cv a ratio
  double cpu_seconds = 0;
  std::vector<Counter> counters;
};

/// The line of one run: p50, p95 and p99 where there are enough values, least and largest in ns, the spread over the
/// ranks, payload and traffic per second, then the line's own counters. Pure.
[[nodiscard]] ReportLine report_line(const std::string& name, const Line& line, int repetitions, int repetition);

/// mean, median, stddev and cv of real time, cpu time and each counter over the repetitions of one benchmark. Pure.
[[nodiscard]] std::vector<ReportLine> aggregates(const std::vector<ReportLine>& runs);

/// {"context": {...}, "benchmarks": [...]}, times in ns; "conclusions": [...] when there are any. Pure.
[[nodiscard]] std::string report_json(const RunContext& context, const std::vector<ReportLine>& lines,
                                      const std::vector<Conclusion>& conclusions = {});

/// One row of the table that people read, and its heading. Pure.
[[nodiscard]] std::string console_heading(std::size_t name_width);
[[nodiscard]] std::string console_row(const ReportLine& line, std::size_t name_width);

/// "12.3 ns", "4.57 us", "1.20 ms", "3.00 s". Pure.
[[nodiscard]] std::string time_text(double seconds);
/// "1.25 GB/s", in powers of ten. Pure.
[[nodiscard]] std::string rate_text(double bytes_per_second);

}  // namespace lockstep::bench
