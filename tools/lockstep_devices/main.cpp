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

/// Returns the exit code.
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
      "Prints what this machine has: processors, NUMA nodes, caches, memory and the speed of a copy in it; and for "
      "each\n"
      "GPU that this process sees its index, UUID, PCI id, name, memory used and free, compute mode, who holds it, "
      "PCIe\n"
      "generation and width, NUMA node, and its links to the others. What nothing here knows is printed as \"not "
      "known\":\n"
      "without the driver's library NVML that is used memory, processes, modes and links.\n\n"
      "The index is what --devices takes (\"1,3\"); it counts the GPUs under CUDA_VISIBLE_DEVICES. A UUID, or its\n"
      "beginning, names a card whatever is visible (--devices GPU-5f3e). \"claimed by\" is a job that was started "
      "with\n"
      "--devices usable:N.\n\n"
      "Exit codes: 0, also without a GPU; 2 an option that does not exist; 3 a driver that answers with an error.",
      "lockstep-devices");
  bool json = false;
  bool no_measure = false;
  app.add_flag("--json", json, "JSON instead of text; null is what is not known");
  app.add_flag("--no-measure", no_measure, "leave the copy out, which takes half a second on all processors");
  return cli::run_alone(app, argc, argv, [&] { return run(json, !no_measure); });
}
