#pragma once

#include <string>

namespace CLI {
class App;
}

namespace examples {

/// Reads a command line into the variables of the app's options: the one way in which programs here do so. Prints
/// nothing and ends nothing, so that it can run before there are ranks, and on each of them inside Session::agree().
///
/// Returns what to print instead of a run, the text of --help or --version; empty: run. UsageError for what the app
/// does not take: the option, what was expected, or, in the order of the command line, what belongs to no option.
[[nodiscard]] std::string parse_command_line(CLI::App& app, int argc, const char* const* argv);

}  // namespace examples
