#pragma once

#include <string>

#include "app/cli/config_file.hpp"

namespace CLI {
class App;
}
namespace lockstep {
class Schema;
}

namespace lockstep::cli {

/// Sets how --help looks in every program, and that the last value counts when an option is given twice. Call it before
/// options are added.
void prepare(CLI::App& app, const std::string& footer);

/// Adds what a schema describes. Its variables get what the command line gives; Schema::check() looks at the ranges.
void add_options(CLI::App& app, Schema& schema);

/// Parses a command line into the variables of the app's options; all programs here use it. It prints nothing and never
/// exits, so it can run before there are ranks, and on each rank inside Session::agree(). Adds --config and --version.
/// `config` is the file that read_config_file() found: its values apply to options that the command line does not give.
///
/// Returns the text to print instead of a run (--help or --version); empty: run. UsageError for arguments that the app
/// does not take: it names the option and what was expected, or the extra arguments in the order of the command line.
/// For a key of the file that is no option, it names file and line.
[[nodiscard]] std::string parse_command_line(CLI::App& app, int argc, const char* const* argv,
                                             const ConfigFile& config);

/// What --help says of a program beside its options.
struct ProgramText {
  std::string name;
  std::string about;      ///< what it does, with examples
  std::string footer;     ///< files and exit codes; in --help all
  bool has_runs = false;  ///< --config takes the config.json of a run, too
};

/// The same for a program whose options one schema describes. --help lists the common ones, with the first part of what
/// each does; --help GROUP those of a group, --help all everything. Checks the ranges of what was given.
[[nodiscard]] std::string parse_command_line(const ProgramText& program, Schema& schema, int argc,
                                             const char* const* argv, const ConfigFile& config);

}  // namespace lockstep::cli
