#pragma once

#include <string>

#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

namespace lockstep {
class Schema;
}

/// The options of every program with ranks: the devices, and how ranks are started (docs/launch.md).
namespace lockstep::cli {

struct LaunchOptions {
  std::string devices = "auto";
  int nodes = 0;
  std::string hostfile;
  std::string launcher = "auto";
  std::string backend = "auto";
  std::string bind = "gpu";
  int max_restarts = 0;
  int min_ranks = 0;
};

/// Says whether a program can continue from a checkpoint. Such a program has --max-restarts and --min-ranks.
enum class Restarts : unsigned char { no, yes };

/// Adds the options to the group Launch.
void describe(Schema& schema, LaunchOptions& options, Restarts restarts = Restarts::no);

/// Returns the request without RestartPolicy::progress. UsageError names the option and what was expected.
[[nodiscard]] lockstep::comm::RanksRequest ranks_request(const LaunchOptions& options);

/// Binds the calling thread, and the threads that it starts later, as --bind says. On a GPU they are bound to the
/// processors next to the GPU; on the host nothing is bound. Returns for headers why the thread runs where it does:
/// "bound next to the GPU", "not bound: --bind none"; empty on the host.
[[nodiscard]] std::string bind_rank(const LaunchOptions& options, lockstep::Device device);

}  // namespace lockstep::cli
