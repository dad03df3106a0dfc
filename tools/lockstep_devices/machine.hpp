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

/// All that is known of a GPU.
struct GpuFacts {
  GpuInfo gpu{};
  PciFacts pci{};
  NvmlGpu nvml{};
  std::vector<std::string> process_names{};  ///< of nvml.processes; empty: not known, e.g. in another container
  std::string claimed_by{};                  ///< the claim's holder; empty: nobody (runtime/machine/gpu_claim.hpp)
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
  std::vector<GpuPair> links{};  ///< each pair in both directions
  std::string gpus_missing{};    ///< why there are none, or what is wrong with the driver
  std::string nvml_missing{};    ///< why NVML does not answer; empty: it does
};

/// Adds the GPUs and what is known about them. nvml may be null. Claims are read in claim_folder, when it exists, and
/// only while no search for usable GPUs runs, so that reading is not taken for a claim. A claim that cannot be read
/// counts as none.
void add_gpus(Machine& machine, const std::vector<GpuInfo>& gpus, const Nvml* nvml, const std::string& claim_folder,
              const std::string& root = "");

/// The same for the GPUs that `list` (list_gpus) returns, with NVML opened for them. Without GPUs the machine says why.
/// False when the driver answers with an error, which the machine then holds: the host half is still worth reading.
[[nodiscard]] bool find_gpus(Machine& machine, const std::function<std::vector<GpuInfo>()>& list,
                             const std::string& claim_folder);

/// The report for people. It says what is not known.
[[nodiscard]] std::string report(const Machine& machine);
/// The report as JSON; null: not known. Bytes, processors as the kernel lists them, speeds in bytes/s.
[[nodiscard]] Json to_json(const Machine& machine);

}  // namespace lockstep::tools
