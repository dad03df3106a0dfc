#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/cost/cost_file.hpp>

namespace lockstep::tools {

/// Returns the most important figures of the file as sentences: the times of a small all-reduce, a large all-reduce and
/// a copy; for one rank, only the time of the copy.
[[nodiscard]] std::vector<std::string> remember(const comm::CostFile& file);

inline constexpr std::array<const char*, 3> kPlotNames{"copies.svg", "all_reduce.svg", "pairs.svg"};
/// Returns the plots of a file as (file name, SVG): copies.svg, all_reduce.svg and pairs.svg, each only if the file has
/// data for it.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> plots(const comm::CostFile& file);

/// Returns the text of cost.md. It has
/// - the machine and the sentences of remember(),
/// - links to the files of plots(),
/// - a table for each path, with the path's model, its distance to the limit and the errors of the fit,
/// - a list of the paths that were not measured.
/// Pure, as are all functions of this header.
[[nodiscard]] std::string report(const comm::CostFile& file);

}  // namespace lockstep::tools
