#pragma once

#include <string>
#include <vector>

#include "tools/lockstep_report/chart.hpp"
#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

/// A chart for each quantity that some run has: loss, accuracy, the learning rate, samples per second, exposed
/// communication, then metrics of one's own by name. Training and evaluation ("test_" in front) share a chart.
[[nodiscard]] std::vector<Chart> charts_of(const std::vector<RunLog>& runs);

/// One HTML document without scripts and without references to other files: a table of the runs, the charts, the
/// last evaluation of each, and the settings, of several runs those that differ.
[[nodiscard]] std::string page_of(const std::vector<RunLog>& runs);

}  // namespace lockstep::tools
