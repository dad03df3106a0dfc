#pragma once

#include <string>

#include "cli/config_file.hpp"

namespace CLI {
class App;
}

namespace lockstep::cli {

/// How the options of every program look in --help, and what is given twice: the last counts. Before options are added.
void prepare(CLI::App& app, const std::string& footer);

/// Reads a command line into the variables of the app's options: the one way in which programs here do so. Prints
/// nothing and ends nothing, so that it can run before there are ranks, and on each of them inside Session::agree().
/// Adds --config, --version: the values of `config`, the file that read_config_file() found, stand in for options that
/// the command line does not give.
///
/// Returns what to print instead of a run, the text of --help or --version; empty: run. UsageError for what the app
/// does not take: the option, what was expected, or, in the order of the command line, what belongs to no option; for a
/// key of the file that is no option, with file and line.
[[nodiscard]] std::string parse_command_line(CLI::App& app, int argc, const char* const* argv,
                                             const ConfigFile& config);

}  // namespace lockstep::cli
