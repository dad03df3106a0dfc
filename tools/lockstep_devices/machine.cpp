#include "tools/lockstep_devices/machine.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <thread>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

namespace lockstep::tools {
namespace {

constexpr const char* kUnknown = "not known";

std::string process_name(int pid, const std::string& root) {
  std::ifstream file(concat(root, "/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

/// Returns the holder of each GPU's claim; the text is empty if there is no holder, or if the holder is not known.
std::vector<std::string> claim_holders(const std::vector<GpuInfo>& gpus, const std::string& folder) {
  std::vector<std::string> holders(gpus.size());
  std::error_code error;  // set if the folder cannot be read; then no holder is known
  if (!std::filesystem::is_directory(folder, error)) {
    return holders;
  }
  try {
    std::optional<GpuClaim> alone;
    for (int i = 0; i < 100 && !alone; ++i) {
      alone = std::move(GpuClaim::attempt(folder, "search").claim);
      if (!alone) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    for (std::size_t i = 0; alone && i < gpus.size(); ++i) {
      holders[i] = GpuClaim::attempt(folder, gpus[i].uuid).holder;
    }
  } catch (const DeviceError&) {  // the folder cannot be used, so the other holders are not known
  }
  return holders;
}

std::string size_text(std::optional<std::uint64_t> bytes) {
  return bytes ? bytes_text(static_cast<double>(*bytes)) : kUnknown;
}

std::string amount(std::optional<int> count, const char* what) {
  return count ? counted(*count, what) : concat(what, "s ", kUnknown);
}

std::string width_text(std::optional<int> generation, std::optional<int> width) {
  if (!generation && !width) {
    return kUnknown;
  }
  return concat("generation ", generation ? std::to_string(*generation) : kUnknown, ", ",
                width ? concat("x", *width) : concat("width ", kUnknown));
}

std::string held_by(const GpuFacts& facts) {
  std::string text;
  if (!facts.nvml.processes) {
    text = concat("processes ", kUnknown);
  } else if (facts.nvml.processes->empty()) {
    text = "no process";
  } else {
    for (std::size_t i = 0; i < facts.nvml.processes->size(); ++i) {
      const GpuProcess& process = (*facts.nvml.processes)[i];
      const std::string& name = facts.process_names[i];
      text += concat(text.empty() ? "" : ", ", "pid ", process.pid, " (", name.empty() ? "name not known" : name, ", ",
                     size_text(process.memory_bytes), ")");
    }
  }
  return facts.claimed_by.empty() ? text : concat(text, "; claimed by ", facts.claimed_by);
}

/// Returns one cell of the table of links: "NV18+peer", "PHB", "?+?".
std::string link_text(const GpuLink& link) {
  std::string text = "?";
  if (link.nvlinks.value_or(0) > 0) {
    text = concat("NV", *link.nvlinks);
  } else if (link.nearest) {
    text = *link.nearest;
  }
  if (link.peer_read) {
    text += *link.peer_read ? "+peer" : "";
  } else {
    text += "+?";
  }
  return text;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

void write_links(std::ostream& out, const Machine& machine) {
  constexpr std::size_t kWidth = 12;
  out << "\n" << padded("links", 10);
  for (const GpuFacts& facts : machine.gpus) {
    out << padded(concat("GPU ", facts.gpu.index), kWidth);
  }
  for (const GpuFacts& from : machine.gpus) {
    out << "\n" << padded(concat("  GPU ", from.gpu.index), 10);
    for (const GpuFacts& to : machine.gpus) {
      const auto pair = std::find_if(machine.links.begin(), machine.links.end(), [&](const GpuPair& p) {
        return p.from == from.gpu.index && p.to == to.gpu.index;
      });
      out << padded(pair == machine.links.end() ? "-" : link_text(pair->link), kWidth);
    }
  }
  out << "\n  NV<n>: n NVLinks; else what both have in common on PCIe: INT one board, PIX one switch, PXB several "
         "switches,\n"
         "  PHB the host bridge, NODE the NUMA node, SYS nothing but the system. +peer: the GPU of the row can read "
         "the\n"
         "  memory of that of the column itself. ?: not known\n";
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json copy_json(const std::optional<CopySpeed>& copy) {
  if (!copy) {
    return {};
  }
  return Json::Object{{"bytes_per_second", copy->bytes_per_second},
                      {"array_bytes", copy->array_bytes},
                      {"threads", copy->threads},
                      {"repetitions", copy->repetitions}};
}

Json host_json(const Machine& machine) {
  const HostFacts& host = machine.host;
  Json::Array numa;
  for (const NumaNode& node : host.numa) {
    numa.emplace_back(Json::Object{
        {"index", node.index}, {"processors", node.processors}, {"memory_bytes", json_of(node.memory_bytes)}});
  }
  Json::Array caches;
  for (const Cache& cache : host.caches) {
    caches.emplace_back(Json::Object{{"level", cache.level},
                                     {"type", cache.type},
                                     {"bytes", cache.bytes},
                                     {"count", cache.count},
                                     {"sharers", cache.sharers}});
  }
  return Json::Object{{"name", host.name},
                      {"processor", text_or_null(host.processor)},
                      {"processors", host.processors},
                      {"usable", host.usable},
                      {"cores", json_of(host.cores)},
                      {"sockets", json_of(host.sockets)},
                      {"numa", numa},
                      {"caches", caches},
                      {"memory_bytes", json_of(host.memory_bytes)},
                      {"copy", copy_json(machine.copy)}};
}

Json processes_json(const GpuFacts& facts) {
  if (!facts.nvml.processes) {
    return {};
  }
  Json::Array list;
  for (std::size_t i = 0; i < facts.nvml.processes->size(); ++i) {
    const GpuProcess& process = (*facts.nvml.processes)[i];
    list.emplace_back(Json::Object{{"pid", process.pid},
                                   {"name", text_or_null(facts.process_names[i])},
                                   {"memory_bytes", json_of(process.memory_bytes)}});
  }
  return list;
}

Json gpu_json(const GpuFacts& facts) {
  const GpuInfo& gpu = facts.gpu;
  return Json::Object{{"index", gpu.index},
                      {"uuid", gpu.uuid},
                      {"pci", gpu.pci},
                      {"name", gpu.name},
                      {"compute_capability", concat(gpu.major, '.', gpu.minor)},
                      {"memory_bytes", std::uint64_t{gpu.memory_bytes}},
                      {"memory_used", json_of(facts.nvml.memory_used)},
                      {"memory_free", json_of(facts.nvml.memory_free)},
                      {"compute_mode", json_of(facts.nvml.compute_mode)},
                      {"processes", processes_json(facts)},
                      {"claimed_by", text_or_null(facts.claimed_by)},
                      {"numa_node", json_of(facts.pci.numa_node)},
                      {"pcie_generation", json_of(facts.pci.generation)},
                      {"pcie_width", json_of(facts.pci.width)},
                      {"pcie_generation_now", json_of(facts.pci.generation_now)},
                      {"pcie_width_now", json_of(facts.pci.width_now)}};
}

}  // namespace

void add_gpus(Machine& machine, const std::vector<GpuInfo>& gpus, const Nvml* nvml, const std::string& claim_folder,
              const std::string& root) {
  const std::vector<std::string> holders = claim_holders(gpus, claim_folder);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    GpuFacts facts{.gpu = gpus[i], .pci = read_pci(gpus[i].pci, root), .claimed_by = holders[i]};
    if (nvml != nullptr) {
      facts.nvml = nvml->gpu(gpus[i].uuid);
    }
    if (facts.nvml.processes) {
      for (const GpuProcess& process : *facts.nvml.processes) {
        facts.process_names.push_back(process_name(process.pid, root));
      }
    }
    machine.gpus.push_back(std::move(facts));
    for (const GpuInfo& other : gpus) {
      if (other.index != gpus[i].index) {
        machine.links.push_back({.from = gpus[i].index,
                                 .to = other.index,
                                 .link = nvml == nullptr ? GpuLink{} : nvml->link(gpus[i].uuid, other.uuid)});
      }
    }
  }
}

bool find_gpus(Machine& machine, const std::function<std::vector<GpuInfo>()>& list, const std::string& claim_folder) {
  try {
    const std::vector<GpuInfo> gpus = list();
    if (gpus.empty()) {
      machine.gpus_missing =
          "none that this process can use: this is the host alone (no card, no driver, CUDA_VISIBLE_DEVICES, or a "
          "build "
          "without CUDA)";
      return true;
    }
    const std::unique_ptr<Nvml> nvml = Nvml::open(machine.nvml_missing);
    add_gpus(machine, gpus, nvml.get(), claim_folder);
    return true;
  } catch (const CudaError& error) {
    machine.gpus_missing = error.what();
    return false;
  }
}

std::string report(const Machine& machine) {
  const HostFacts& host = machine.host;
  std::ostringstream out;
  out << machine.build << "\n\nhost      " << host.name << ", "
      << (host.processor.empty() ? std::string("processor ") + kUnknown : host.processor) << "\n          "
      << amount(host.sockets, "socket") << ", " << amount(host.cores, "core") << ", "
      << amount(host.processors, "processor") << " (hyper-threads counted), " << host.usable << " for this process\n";
  for (const NumaNode& node : host.numa) {
    out << "  NUMA    node " << node.index << ": processors " << (node.processors.empty() ? "none" : node.processors)
        << ", " << size_text(node.memory_bytes) << "\n";
  }
  for (const Cache& cache : host.caches) {
    out << "  L" << cache.level << "      " << cache.count << " x " << size_text(cache.bytes) << " " << cache.type
        << ", for " << amount(cache.sharers, "processor") << " each\n";
  }
  out << "  memory  " << size_text(host.memory_bytes) << "\n";
  if (machine.copy) {
    out << "  copy    " << rate_text(machine.copy->bytes_per_second)
        << " read and written together (measured: two arrays of " << size_text(machine.copy->array_bytes) << ", "
        << amount(machine.copy->threads, "thread") << ", best of " << machine.copy->repetitions << ")\n";
  } else {
    out << "  copy    not measured\n";
  }
  if (machine.gpus.empty()) {
    out << "\nGPUs      " << machine.gpus_missing << "\n";
    return out.str();
  }
  for (const GpuFacts& facts : machine.gpus) {
    const GpuInfo& gpu = facts.gpu;
    const PciFacts& pci = facts.pci;
    out << "\nGPU " << padded(std::to_string(gpu.index), 6) << gpu.name << "  " << gpu.uuid << "  " << gpu.pci
        << "\n  memory  " << size_text(gpu.memory_bytes) << ": " << size_text(facts.nvml.memory_used) << " used, "
        << size_text(facts.nvml.memory_free) << " free\n  held by " << held_by(facts) << "\n  mode    "
        << facts.nvml.compute_mode.value_or(kUnknown) << "\n  PCIe    " << width_text(pci.generation, pci.width)
        << "; now " << width_text(pci.generation_now, pci.width_now) << "\n  NUMA    "
        << (pci.numa_node ? concat("node ", *pci.numa_node) : std::string(kUnknown)) << "\n";
  }
  if (machine.gpus.size() > 1) {
    write_links(out, machine);
  }
  if (!machine.nvml_missing.empty()) {
    out << "\nNVML, which knows used memory, processes, modes and links: " << machine.nvml_missing << "\n";
  }
  return out.str();
}

Json to_json(const Machine& machine) {
  Json::Array gpus;
  for (const GpuFacts& facts : machine.gpus) {
    gpus.emplace_back(gpu_json(facts));
  }
  Json::Array links;
  for (const GpuPair& pair : machine.links) {
    links.emplace_back(Json::Object{{"from", pair.from},
                                    {"to", pair.to},
                                    {"nvlinks", json_of(pair.link.nvlinks)},
                                    {"pcie", json_of(pair.link.nearest)},
                                    {"peer_read", json_of(pair.link.peer_read)}});
  }
  return Json::Object{{"lockstep", machine.build},
                      {"host", host_json(machine)},
                      {"gpus", gpus},
                      {"links", links},
                      {"gpus_missing", text_or_null(machine.gpus_missing)},
                      {"nvml_missing", text_or_null(machine.nvml_missing)}};
}

}  // namespace lockstep::tools
