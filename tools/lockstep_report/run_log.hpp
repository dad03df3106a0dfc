#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/lockstep_report/evaluation.hpp"

namespace lockstep::tools {

/// One value of a run after `step` updates.
struct Point {
  std::int64_t step = 0;
  double value = 0;
};
using Points = std::vector<Point>;

/// One line of metrics.jsonl: an event "step" or "epoch".
struct Row {
  enum class Kind { step, epoch };
  struct Value {
    std::size_t field = 0;          ///< index in RunLog::fields
    std::optional<double> value{};  ///< the value; empty for null (NaN, infinite, or never measured)
  };
  Kind kind = Kind::step;
  /// Index of the epoch, from 0, for an event "step". Number of completed epochs for an event "epoch". Empty if the
  /// line has no epoch.
  std::optional<std::int64_t> epoch{};
  std::int64_t step = 0;
  std::vector<Value> values;  ///< numbers and nulls
};

/// The log of a run, its settings and its last evaluation. A step that was trained again after a resume appears once,
/// with its last values.
struct RunLog {
  std::string name;                       ///< name of the folder; unique among the runs of a page
  std::string path;                       ///< path that the user gave
  std::vector<std::string> files;         ///< files that were read: the log, settings, the evaluation
  std::vector<std::string> fields;        ///< names of the fields of all rows, without duplicates
  std::vector<Row> rows;                  ///< rows in the order of the file
  std::map<std::string, Points> reports;  ///< values of the rows "step", by field; steps increase
  std::map<std::string, Points> epochs;   ///< values of the rows "epoch", by field
  std::map<std::string, std::vector<std::int64_t>>
      gaps;                                 ///< steps with the value null (NaN, infinite, or never measured), by field
  std::vector<std::int64_t> resumed_after;  ///< steps after which the run was resumed
  std::int64_t steps = 0;                   ///< last step of the log
  double seconds = 0;                       ///< time of all epochs of the log
  std::optional<std::int64_t> exit_code{};  ///< exit code; empty if the run has not ended or was killed
  std::string best_by{};                    ///< field whose best value is `best`: "test_accuracy"
  std::optional<double> best{};             ///< best value of the field `best_by`; empty if the log has none
  std::optional<Evaluation> evaluation{};   ///< contents of evaluation.json; empty without this file
  std::map<std::string, std::string> settings;  ///< values of config.json, if it exists, by key ("options.clip_norm")
};

/// Reads a run. If `path` is a folder, reads metrics.jsonl there and, if they exist, config.json and evaluation.json;
/// otherwise reads `path` as a file of metrics. Ignores an incomplete last line, as a run that resumes does. Throws
/// DataError for a folder without metrics.jsonl. A DataError names the number of a line that is not one JSON object
/// with an event.
[[nodiscard]] RunLog read_run(const std::string& path);

/// Reads several runs; runs of the same name get their paths as names. Throws UsageError for an empty path, and for a
/// path that is given twice; DataError when no run has made a step yet.
[[nodiscard]] std::vector<RunLog> read_runs(const std::vector<std::string>& paths);

}  // namespace lockstep::tools
