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

/// Adds the group Launch, whose options set `options`, to `schema`. With Restarts::yes, also adds --max-restarts and
/// --min-ranks.
void describe(Schema& schema, LaunchOptions& options, Restarts restarts = Restarts::no);

/// Converts `options` to a RanksRequest. Does not set RestartPolicy::progress. UsageError names the option and what was
/// expected.
[[nodiscard]] lockstep::comm::RanksRequest ranks_request(const LaunchOptions& options);

/// Binds the calling thread, and the threads that it starts later, to the processors next to the GPU `device`, as
/// --bind says. If `device` is the host, binds nothing. Returns a text for the program's header that says where the
/// thread runs: "bound next to the GPU" or "not bound: --bind none"; on the host an empty text.
[[nodiscard]] std::string bind_rank(const LaunchOptions& options, lockstep::Device device);

}  // namespace lockstep::cli
