#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/lockstep_report/run_log.hpp"
#include "tools/svg/plot.hpp"

namespace lockstep::tools {

/// A chart for each quantity that some run has: loss, accuracy, the learning rate, samples per second, exposed
/// communication, then metrics of one's own by name. Training and evaluation ("test_" in front) share a chart.
[[nodiscard]] std::vector<Panel> charts_of(const std::vector<RunLog>& runs);

/// At most `most` points that look the same: of equally wide ranges of steps the least and the greatest value.
[[nodiscard]] Points thinned(const Points& points, std::size_t most);

/// One HTML document without scripts and without references to other files: a table of the runs, the charts, the
/// last evaluation of each, and the settings, of several runs those that differ.
[[nodiscard]] std::string page_of(const std::vector<RunLog>& runs);

}  // namespace lockstep::tools
