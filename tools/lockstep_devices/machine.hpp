#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

#include "tools/lockstep_devices/host_facts.hpp"
#include "tools/lockstep_devices/nvml.hpp"

namespace lockstep::tools {

/// All facts about a GPU.
struct GpuFacts {
  GpuInfo gpu{};
  PciFacts pci{};
  NvmlGpu nvml{};
  /// Names of the processes in nvml.processes. Empty for an unknown name, such as that of a process in a container.
  std::vector<std::string> process_names{};
  std::string claimed_by{};  ///< holder of the GPU's claim (runtime/machine/gpu_claim.hpp), or empty
};

struct GpuPair {
  int from = 0;
  int to = 0;
  GpuLink link{};
};

struct Machine {
  std::string build{};  ///< build_description()
  HostFacts host{};
  std::optional<CopySpeed> copy{};
  std::vector<GpuFacts> gpus{};
  std::vector<GpuPair> links{};  ///< links between GPUs; each pair of GPUs occurs in both directions
  std::string gpus_missing{};    ///< reason why there are no GPUs, or the driver's error
  std::string nvml_missing{};    ///< reason why NVML does not answer; empty if NVML answers
};

/// Adds the GPUs with their facts. nvml may be null. Reads the claims in claim_folder, if the folder exists. First
/// waits up to a second until no search for usable GPUs runs, because such a search would mistake the reading for a
/// claim. If a claim cannot be read, the GPU counts as not claimed.
void add_gpus(Machine& machine, const std::vector<GpuInfo>& gpus, const Nvml* nvml, const std::string& claim_folder,
              const std::string& root = "");

/// Opens NVML and adds the GPUs that `list` (list_gpus) returns. Without GPUs, machine.gpus_missing has the reason.
/// Returns false if the driver answers with an error; then gpus_missing has the error, and the host's facts stay valid.
[[nodiscard]] bool find_gpus(Machine& machine, const std::function<std::vector<GpuInfo>()>& list,
                             const std::string& claim_folder);

/// Returns the report for people; a missing fact reads "not known".
[[nodiscard]] std::string report(const Machine& machine);
/// Returns the report as JSON; a fact that is not known is null. Sizes are in bytes, speeds in bytes/s, processors as
/// the kernel lists them.
[[nodiscard]] Json to_json(const Machine& machine);

}  // namespace lockstep::tools
