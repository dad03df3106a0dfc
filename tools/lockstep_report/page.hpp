#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/lockstep_report/run_log.hpp"
#include "tools/svg/plot.hpp"

namespace lockstep::tools {

/// Returns a chart for each quantity of any run. Order: loss, accuracy, learning rate, samples per second, exposed
/// communication, then the user's own metrics by name. Training and evaluation (prefix "test_") share a chart.
[[nodiscard]] std::vector<Panel> charts_of(const std::vector<RunLog>& runs);

/// Returns at most `most` points that draw the same curve as `points`. Divides the steps into ranges of equal width and
/// keeps the smallest and the largest value of each range.
[[nodiscard]] Points thinned(const Points& points, std::size_t most);

/// Returns one HTML document without scripts and without references to other files: a table of the runs, the charts,
/// the last evaluation of each run, and the settings. For several runs, shows only the settings that differ.
[[nodiscard]] std::string page_of(const std::vector<RunLog>& runs);

}  // namespace lockstep::tools
