#include "launch_options.hpp"

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::cli {

void describe(Schema& schema, LaunchOptions& options, Restarts restarts) {
  schema.group("Launch");
  schema
      .add(
          "devices", options.devices,
          "auto, cpu, cpu:RANKS, gpu, 2 (GPUs), 1,3 (by index) or usable:2; on each node; gpu: all; 1, is GPU 1 alone; "
          "GPU-UUID is one, too; usable:2: two that are not occupied; without a launcher the program starts as many "
          "ranks itself (docs/launch.md)")
      .is_common();
  schema.add("nodes", options.nodes, "the ranks are on N nodes; 0: not said").at_least(0);
  schema.add("hostfile", options.hostfile, "nodes for mpirun, when the program starts its ranks itself");
  schema.add("launcher", options.launcher,
             "what the program starts its ranks with: auto (srun in a SLURM allocation, else mpirun), mpirun, srun, "
             "none");
  schema.add("backend", options.backend,
             "how ranks meet and exchange what is on hosts: auto (gloo for ranks of torchrun, else mpi), mpi, gloo "
             "(MASTER_ADDR and MASTER_PORT say where); nccl is auto: GPUs use it in any case");
  schema.add("bind", options.bind, "gpu: threads run on the processors next to the rank's GPU; none")
      .one_of({"none", "gpu"});
  if (restarts == Restarts::yes) {
    schema
        .add("max_restarts", options.max_restarts,
             "start broken ranks again from the last checkpoint, so many times at most; for ranks that the program "
             "starts itself")
        .is_common();
    schema.add("min_ranks", options.min_ranks,
               "if a start failed before its first checkpoint, the next has one rank fewer, down to N; 0: never fewer");
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
