#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/cost/cost_file.hpp>

namespace lockstep::tools {

/// The figures to remember, as sentences: a small all-reduce, a large one, a copy (for one rank, two lines on copies).
[[nodiscard]] std::vector<std::string> remember(const comm::CostFile& file);

inline constexpr std::array<const char*, 3> kPlotNames{"copies.svg", "all_reduce.svg", "pairs.svg"};
/// The plots of a file as (file name, SVG): those of copies.svg, all_reduce.svg, pairs.svg that have data.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> plots(const comm::CostFile& file);

/// cost.md: the machine, the figures to remember, the plots (by the names above), a table for each path with its model,
/// its distance to the limit and the errors of the fit, and what was not measured. Pure, as is everything here.
[[nodiscard]] std::string report(const comm::CostFile& file);

}  // namespace lockstep::tools
