#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/gradients/cost_file.hpp>

namespace lockstep::tools {

/// What a user should remember: a small all-reduce, a large one, a copy (two lines for it on one rank). Sentences.
[[nodiscard]] std::vector<std::string> remember(const comm::CostFile& file);

inline constexpr std::array<const char*, 3> kPlotNames{"copies.svg", "all_reduce.svg", "pairs.svg"};
/// The plots of a file as (file name, SVG): copies.svg, all_reduce.svg, pairs.svg, each where there is something in it.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> plots(const comm::CostFile& file);

/// cost.md: machine, the numbers to remember, plots (by the names above), a table for each path with its model, its
/// distance to the limit and the errors of the fit, and what was left out. Pure, like all here.
[[nodiscard]] std::string report(const comm::CostFile& file);

}  // namespace lockstep::tools
