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

/// Sets the form of --help for all programs, and makes the last value count if an option is given twice. Call it before
/// options are added.
void prepare(CLI::App& app, const std::string& footer);

/// Adds the options that a schema describes. The schema's variables get the values of the command line. Schema::check()
/// checks the ranges.
void add_options(CLI::App& app, Schema& schema);

/// Breaks the descriptions of an app's options into lines for CLI11's own --help, which has 100 columns then. Call it
/// before CLI::App::help().
void wrap_descriptions(CLI::App& app);

/// Parses a command line into the variables of the app's options. All programs of this project use this function. It
/// prints nothing and never exits, so it can run before there are ranks, and on each rank inside Session::agree(). It
/// adds --config and --version. `config` is the result of read_config_file(); its values apply to options that the
/// command line does not give.
///
/// Returns the text to print instead of a run (--help or --version), or an empty text for a run. UsageError for
/// arguments that the app does not take. The error names the option and what was expected, or the extra arguments in
/// the order of the command line. For a key of the file that is no option, the error names file and line.
[[nodiscard]] std::string parse_command_line(CLI::App& app, int argc, const char* const* argv,
                                             const ConfigFile& config);

/// Texts of --help about a program, in addition to its options.
struct ProgramText {
  std::string name;
  std::string about;      ///< the program's purpose, with examples
  std::string footer;     ///< files and exit codes, shown only by --help all
  bool has_runs = false;  ///< true: --config also takes the config.json of a run
};

/// Parses the command line of a program whose options one schema describes, and checks the ranges of the values. --help
/// lists the common options, each with the first part of its help; --help GROUP lists a group; --help all lists all.
[[nodiscard]] std::string parse_command_line(const ProgramText& program, Schema& schema, int argc,
                                             const char* const* argv, const ConfigFile& config);

}  // namespace lockstep::cli
