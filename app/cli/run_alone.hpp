#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// The main() of a program of one process. Inside comm::run_alone(), parses the options of `app` (and --version), then
/// calls `body`, which returns the exit code. Arguments that `app` does not take are a UsageError.
int run_alone(CLI::App& app, int argc, const char* const* argv, const std::function<int()>& body) noexcept;

}  // namespace lockstep::cli
