#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/lockstep_report/evaluation.hpp"

namespace lockstep::tools {

/// One value of a run: after `step` updates.
struct Point {
  std::int64_t step = 0;
  double value = 0;
};
using Points = std::vector<Point>;

/// An event "step" or "epoch": a line of metrics.jsonl.
struct Row {
  enum class Kind { step, epoch };
  struct Value {
    std::size_t field = 0;          ///< its place in RunLog::fields
    std::optional<double> value{};  ///< empty: null (NaN, infinite, or never measured)
  };
  Kind kind = Kind::step;
  std::optional<std::int64_t> epoch{};  ///< "step": from 0; "epoch": those that are done; empty: the line does not tell
  std::int64_t step = 0;
  std::vector<Value> values;  ///< numbers and nulls
};

/// What a run has written about itself. Steps that were trained again after a resume are those of the last time.
struct RunLog {
  std::string name;                       ///< of its folder; unique among the runs of a page
  std::string path;                       ///< as it was given
  std::vector<std::string> files;         ///< that were read: the log, settings, the evaluation
  std::vector<std::string> fields;        ///< of some row, each once
  std::vector<Row> rows;                  ///< in the order of the file
  std::map<std::string, Points> reports;  ///< values of the rows "step", by field; steps increase
  std::map<std::string, Points> epochs;   ///< of the rows "epoch"
  std::map<std::string, std::vector<std::int64_t>>
      gaps;                                     ///< steps whose value was null (NaN, infinite, or never measured)
  std::vector<std::int64_t> resumed_after;      ///< steps
  std::int64_t steps = 0;                       ///< the last that is told of
  double seconds = 0;                           ///< of the epochs that are told of
  std::optional<std::int64_t> exit_code{};      ///< empty: the run did not tell of its end (it runs, or was killed)
  std::string best_by{};                        ///< "test_accuracy"
  std::optional<double> best{};                 ///< empty: not told
  std::optional<Evaluation> evaluation{};       ///< of evaluation.json; empty: there is none
  std::map<std::string, std::string> settings;  ///< of config.json, "options.clip_norm"; empty: there is none
};

/// Reads metrics.jsonl and, where they are there, config.json and evaluation.json of a folder of results, or a file of
/// metrics alone. An incomplete last line is left out, as a run that resumes does. DataError for a folder without
/// metrics.jsonl, and a line that is not one JSON object with an event (its number is named).
[[nodiscard]] RunLog read_run(const std::string& path);

/// Several runs; two of one name get their paths as names. UsageError for an empty path, and for one that is given
/// twice; DataError when none has made a step yet.
[[nodiscard]] std::vector<RunLog> read_runs(const std::vector<std::string>& paths);

}  // namespace lockstep::tools
