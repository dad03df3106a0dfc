#pragma once

#include <string>
#include <vector>

#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

/// Returns the rows of all runs as comma-separated values. The format is that of RFC 4180, but lines end with a line
/// feed only, as tools for text expect. The first line has the names of the columns. After it come the rows of the
/// first run, then those of the next run, and so on. The columns are
///   run, event, epoch, step   event is "step" (a report) or "epoch" (the end of an epoch); step is never empty
///   each field of any run     in the order of in_order(), with "test_X" right after "X"; a field "run" is called
///                             "run.1", as in pandas, so that no two columns share a name
///
/// A cell is empty when the row lacks the field or has null. Numbers read back as the same double; whole numbers below
/// 2^53 have neither point nor exponent. Bytes of a run's name that are not UTF-8 are written as \xNN, since a reader
/// would refuse the whole file.
[[nodiscard]] std::string csv_of(const std::vector<RunLog>& runs);

}  // namespace lockstep::tools
