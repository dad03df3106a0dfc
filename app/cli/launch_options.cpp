#include "launch_options.hpp"

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::cli {

void add_launch_options(CLI::App& app, LaunchOptions& options, const std::string& group) {
  app.add_option(
         "--devices", options.devices,
         "on each node: auto, cpu, cpu:RANKS, gpu (all), a number of GPUs (2), GPUs by index (1,3 or 1, alone), "
         "GPU-UUID or usable:2 (two that are not occupied). Without a launcher the program starts as many ranks "
         "itself; docs/launch.md")
      ->capture_default_str()
      ->group(group);
  app.add_option("--nodes", options.nodes, "the ranks are on N nodes; 0: not said")
      ->capture_default_str()
      ->group(group);
  app.add_option("--hostfile", options.hostfile, "nodes for mpirun, when the program starts its ranks itself")
      ->group(group);
  app.add_option(
         "--launcher", options.launcher,
         "what the program starts its ranks with: auto (srun in a SLURM allocation, else mpirun), mpirun, srun, "
         "none")
      ->capture_default_str()
      ->group(group);
  app.add_option("--backend", options.backend,
                 "how ranks meet and exchange what is on hosts: auto (gloo for ranks of torchrun, else mpi), mpi, gloo "
                 "(MASTER_ADDR and MASTER_PORT say where); nccl is auto: GPUs use it in any case")
      ->capture_default_str()
      ->group(group);
  app.add_option("--bind", options.bind, "gpu: threads run on the processors next to the rank's GPU; none")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "gpu"}))
      ->group(group);
}

void add_restart_options(CLI::App& app, LaunchOptions& options, const std::string& group) {
  app.add_option("--max-restarts", options.max_restarts,
                 "when ranks break, start them again from the last checkpoint, at most so many times; for ranks that "
                 "the program starts itself")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--min-ranks", options.min_ranks,
         "if a start failed before its first checkpoint, the next has one rank fewer, down to N; 0: never fewer")
      ->capture_default_str()
      ->group(group);
}

lockstep::comm::RanksRequest ranks_request(const LaunchOptions& options) {
  lockstep::require<lockstep::UsageError>(options.nodes >= 0, "--nodes is ", options.nodes, ", expected at least 0");
  return {.devices = lockstep::parse_devices(options.devices),
          .nodes = options.nodes,
          .hostfile = options.hostfile,
          .launcher = lockstep::comm::parse_launcher(options.launcher),
          .backend = lockstep::comm::parse_backend(options.backend),
          .restart = {.most = options.max_restarts, .min_ranks = options.min_ranks}};
}

std::string bind_rank(const LaunchOptions& options, lockstep::Device device) {
  if (device == lockstep::Device::cpu()) {
    return "";
  }
  if (options.bind != "gpu") {
    return "not bound: --bind " + options.bind;
  }
  return lockstep::bind_this_thread_near(lockstep::list_gpus().at(static_cast<std::size_t>(device.index)).pci).reason;
}

}  // namespace lockstep::cli
