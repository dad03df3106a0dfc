#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// The main() of a program of one process with options. Parses the command line, with --version, and calls `body`,
/// which returns the exit code, both inside comm::run_alone(). UsageError for arguments that the app does not take.
int run_alone(CLI::App& app, int argc, const char* const* argv, const std::function<int()>& body) noexcept;

}  // namespace lockstep::cli
