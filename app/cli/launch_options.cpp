#include "launch_options.hpp"

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::cli {

void describe(Schema& schema, LaunchOptions& options, Restarts restarts) {
  schema.group("Launch");
  schema
      .add("devices", options.devices,
           "devices of each node: auto, cpu, cpu:RANKS, gpu, 2 (GPUs), 1,3 (by index) or usable:2; gpu: all GPUs; 1, "
           "(with a comma): GPU 1 alone; GPU-UUID: the GPU with this UUID; usable:2: two GPUs that are not occupied; "
           "without a launcher the program itself starts a rank for each device (docs/launch.md)")
      .is_common();
  schema.add("nodes", options.nodes, "number of nodes on which the ranks run; 0: not given").at_least(0);
  schema.add("hostfile", options.hostfile, "file of nodes for mpirun, when the program starts its ranks itself");
  schema.add(
      "launcher", options.launcher,
      "program that starts the ranks: auto (srun in a SLURM allocation, otherwise mpirun), mpirun, srun or none");
  schema.add(
      "backend", options.backend,
      "library by which ranks meet and exchange data in host memory: auto (gloo for ranks of torchrun, otherwise mpi), "
      "mpi or gloo (at MASTER_ADDR and MASTER_PORT); nccl means auto, because GPUs use NCCL in any case");
  schema
      .add("bind", options.bind,
           "processors for a rank's threads; gpu: the processors next to the rank's GPU; none: no choice of processors")
      .one_of({"none", "gpu"});
  if (restarts == Restarts::yes) {
    schema
        .add("max_restarts", options.max_restarts,
             "start broken ranks again from the last checkpoint, at most N times; for ranks that the program starts "
             "itself")
        .is_common();
    schema.add("min_ranks", options.min_ranks,
               "least number of ranks of a restart; a restart has fewer ranks if the start before failed without a new "
               "checkpoint; 0: never fewer");
  }
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
