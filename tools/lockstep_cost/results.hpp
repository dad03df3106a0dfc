#pragma once

#include <string>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/launch/session.hpp>

namespace lockstep::tools {

/// Makes the folder and checks that a file can be written there, before minutes are spent on measuring. Throws
/// DataError, or WriteError for a full disk.
void require_writable(const std::string& folder);

/// Returns the present time, as "2025-01-31 12:00 UTC".
[[nodiscard]] std::string date();

/// Returns the command that repeats this run.
[[nodiscard]] std::string command_of(const comm::Session& session, int argc, char** argv);

/// Replaces cost.json, the plots and cost.md in `folder`. Removes those plots of an earlier run that this run does not
/// make.
void write(const std::string& folder, const comm::CostFile& file);

/// Returns the lines to print at the end: the sentences of remember(), the paths that were not measured, and the folder
/// of the results.
[[nodiscard]] std::string summary(const std::string& folder, const comm::CostFile& file, double seconds);

}  // namespace lockstep::tools
