#pragma once

#include <string>

#include <lockstep/comm/self_start.hpp>

namespace CLI {
class App;
}

/// The options that every program of ranks has: which devices, and how its ranks are started (docs/launch.md).
namespace examples {

struct LaunchOptions {
  std::string devices = "auto";
  int nodes = 0;
  std::string hostfile;
  std::string launcher = "auto";
};

/// --devices, --nodes, --hostfile, --launcher.
void add_launch_options(CLI::App& app, LaunchOptions& options, const std::string& group);

/// UsageError that names the option and what was expected.
[[nodiscard]] lockstep::comm::RanksRequest ranks_request(const LaunchOptions& options);

}  // namespace examples
