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

/// Sets how `app` prints --help, with `footer` at the end. Also lets the last value count if an option is given twice.
/// Call prepare() before options are added.
void prepare(CLI::App& app, const std::string& footer);

/// Adds the options that `schema` describes to `app`. Parsing then writes their values to the schema's variables, but
/// only Schema::check() checks the ranges of the values.
void add_options(CLI::App& app, Schema& schema);

/// Breaks the descriptions of an app's options so that the --help text of CLI11 has at most 100 columns. Call
/// wrap_descriptions() before CLI::App::help().
void wrap_descriptions(CLI::App& app);

/// Parses a command line into the variables of the options of `app`, and adds --config and --version to `app`. All
/// programs of this project use this function. parse_command_line() prints nothing and never exits, so programs can
/// call it before there are ranks, and on each rank inside Session::agree(). `config` is the result of
/// read_config_file(). The command line takes precedence over `config`.
///
/// Returns the text to print instead of a run (--help or --version), or an empty text for a run. Throws UsageError for
/// arguments that `app` does not take. The error text names the option and what was expected, or lists the unknown
/// arguments in the order of the command line. For an unknown key in a file, the text names the file and the line.
[[nodiscard]] std::string parse_command_line(CLI::App& app, int argc, const char* const* argv,
                                             const ConfigFile& config);

/// Texts that --help of a program shows in addition to the program's options.
struct ProgramText {
  std::string name;
  std::string about;      ///< the program's purpose, with examples
  std::string footer;     ///< files and exit codes, shown only by --help all
  bool has_runs = false;  ///< true: --config also takes the config.json of a run
};

/// Parses the command line of a program that has the options in `schema`, and checks the ranges of the values. --help
/// lists the common options, each with its help up to the first ';'. --help GROUP lists the options of a group, and
/// --help all lists all options.
[[nodiscard]] std::string parse_command_line(const ProgramText& program, Schema& schema, int argc,
                                             const char* const* argv, const ConfigFile& config);

}  // namespace lockstep::cli
