#pragma once

#include <string>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/launch/session.hpp>

namespace lockstep::tools {

/// Makes the folder and checks that a file can be written there, before minutes are spent on results that could not be.
/// DataError, or WriteError for a full disk.
void require_writable(const std::string& folder);

/// Now, as "2025-01-31 12:00 UTC".
[[nodiscard]] std::string date();

/// The command that repeats this run.
[[nodiscard]] std::string command_of(const comm::Session& session, int argc, char** argv);

/// Replaces cost.json, the plots and cost.md in the folder; plots of an earlier run with more ranks are removed.
void write(const std::string& folder, const comm::CostFile& file);

/// The lines to print at the end: the figures to remember, what was left out, where the results are.
[[nodiscard]] std::string summary(const std::string& folder, const comm::CostFile& file, double seconds);

}  // namespace lockstep::tools
