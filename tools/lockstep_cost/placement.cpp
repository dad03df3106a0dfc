#include "tools/lockstep_cost/placement.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tools/lockstep_devices/host_facts.hpp"
#include "tools/lockstep_devices/nvml.hpp"

namespace lockstep::tools {
namespace {

/// Returns the UUIDs of the GPUs of this node's ranks, in the order of the ranks. A single rank on the node gets the
/// UUIDs of all GPUs that `request` names.
std::vector<std::string> gpus_of_node(comm::Session& session, const DeviceRequest& request,
                                      const std::vector<GpuInfo>& gpus, const std::string& mine) {
  std::vector<std::string> given;
  session.agree([&] {
    if (session.local_size() > 1) {
      return;
    }
    if (std::holds_alternative<DeviceRequest::Usable>(request.form())) {
      given = {mine};
      return;
    }
    for (const Device& device : select_devices(request, gpus).devices) {
      given.push_back(gpus.at(static_cast<std::size_t>(device.index)).uuid);
    }
  });
  const std::vector<std::string> all = comm::all_gather_text(session.control(), concat(session.node(), ' ', mine));
  const std::string own_node = concat(session.node(), ' ');
  for (const std::string& text : all) {
    if (session.local_size() > 1 && text.starts_with(own_node)) {
      given.push_back(text.substr(own_node.size()));
    }
  }
  return given;
}

}  // namespace

comm::RankDevice place(comm::Session& session, const DeviceRequest& request, SurveyOptions& survey) {
  comm::RankDevice placed = comm::place_rank(session, request);
  survey.device = placed.device;
  survey.shares_device = placed.shared;
  if (placed.device == Device::cpu()) {
    survey.gpu_missing = request.text().starts_with("cpu") ? "The GPU half: the host was asked for (--devices)."
                                                           : "The GPU half: this machine has no GPU that this build "
                                                             "can use, so only host memory and MPI were measured.";
    return placed;
  }
  std::vector<GpuInfo> gpus;
  GpuInfo mine;
  session.agree([&] {
    gpus = list_gpus();
    mine = gpus.at(static_cast<std::size_t>(placed.device.index));
  });
  const std::vector<std::string> given = gpus_of_node(session, request, gpus, mine.uuid);
  session.agree([&] {
    const PciFacts pci = read_pci(mine.pci);
    survey.host_link = pcie_limit(pci.generation, pci.width);
    survey.peer = peer_gpu(gpus, mine.uuid, given);
    std::string why;
    if (const std::unique_ptr<Nvml> nvml = Nvml::open(why); nvml != nullptr) {
      const NvmlGpu facts = nvml->gpu(mine.uuid);
      survey.device_memory = device_memory_limit(facts.memory_clock_mhz, facts.memory_bus_bits);
      if (survey.peer) {
        const GpuInfo& next = gpus.at(static_cast<std::size_t>(survey.peer->index));
        const PciFacts other = read_pci(next.pci);
        survey.peer_link = peer_limit(mine.major, nvml->link(mine.uuid, next.uuid).nvlinks, survey.host_link,
                                      pcie_limit(other.generation, other.width));
      }
    }
  });
  // All ranks must measure the same paths. So if one rank has no peer GPU, no rank measures copies to a peer GPU.
  const std::vector<double> peers = comm::all_gather_value(session.control(), survey.peer ? 1 : 0);
  if (*std::min_element(peers.begin(), peers.end()) == 0) {
    survey.peer.reset();
    survey.gpu_missing = "Copies between GPUs: not every rank has a second one that was asked for and that it sees.";
  }
  return placed;
}

}  // namespace lockstep::tools
