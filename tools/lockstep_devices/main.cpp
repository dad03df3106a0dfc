// lockstep-devices: prints the hardware of this machine: the host's processors, caches and memory; each GPU with its
// memory, its users and its links. Makes no context on a GPU. One process, no mpirun.

#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

#include "app/cli/run_alone.hpp"
#include "tools/lockstep_devices/machine.hpp"

namespace {

using namespace lockstep;

/// Finds and prints the facts about the machine. Returns the exit code.
int run(bool json, bool measure) {
  tools::Machine machine{.build = build_description(), .host = tools::read_host()};
  const bool found = tools::find_gpus(machine, list_gpus, default_claim_folder());
  if (measure) {
    constexpr double kSeconds = 0.5;
    try {
      machine.copy = tools::measure_copy(tools::copy_array_bytes(machine.host), kSeconds);
    } catch (const OutOfMemory&) {  // NOLINT(bugprone-empty-catch): the speed stays unknown
    }
  }
  const std::string text = json ? tools::to_json(machine).text(2) + "\n" : tools::report(machine);
  std::fputs(text.c_str(), stdout);
  return found ? exit_code::kFinished : exit_code::kFailure;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Prints the processors, NUMA nodes, caches and memory of this machine, and the speed of a copy in\n"
      "memory. Prints for each GPU that this process sees: index, UUID, PCI id, name, used and free memory,\n"
      "compute mode, the processes that use the GPU, PCIe generation and width, NUMA node, and links to the\n"
      "other GPUs. Facts that cannot be found are printed as \"not known\"; without the driver's library NVML\n"
      "used memory, processes, modes and links are not known.\n\n"
      "--devices takes the index (\"1,3\"), which counts the GPUs under CUDA_VISIBLE_DEVICES. A UUID, or its\n"
      "beginning, names a card under any CUDA_VISIBLE_DEVICES (--devices GPU-5f3e). \"claimed by\" names a\n"
      "job that was started with --devices usable:N.\n\n"
      "Exit codes: 0 finished, also without a GPU; 2 an option that does not exist; 3 a driver that answers\n"
      "with an error.",
      "lockstep-devices");
  bool json = false;
  bool no_measure = false;
  app.add_flag("--json", json, "print JSON instead of text; null: not known");
  app.add_flag("--no-measure", no_measure, "do not measure the copy, which takes half a second on all processors");
  return cli::run_alone(app, argc, argv, [&] { return run(json, !no_measure); });
}
