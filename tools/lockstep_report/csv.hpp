#pragma once

#include <string>
#include <vector>

#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

/// The rows of all runs as comma-separated values (RFC 4180, but lines end with a line feed alone, as tools for text
/// expect): one line of names, then a line for each row, the runs one after the other.
///   run, event, epoch, step   of the row: event is "step" (a report) or "epoch" (its end), step is never empty
///   then a column for each field of some run: the order of in_order(), "test_X" right behind "X". A field that is
///   called "run" is "run.1" here, as pandas would call it, so that no two columns share a name
/// A cell is empty where the row has no such field or null. Numbers read back as the same double; whole ones below 2^53
/// have neither point nor exponent. Bytes of a run's name that are not UTF-8 stand as \xNN: a reader would refuse the
/// whole file.
[[nodiscard]] std::string csv_of(const std::vector<RunLog>& runs);

}  // namespace lockstep::tools
