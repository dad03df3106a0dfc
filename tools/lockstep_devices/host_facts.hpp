#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::tools {

struct NumaNode {
  int index = 0;
  std::string processors{};  ///< text such as "0-15,32-47"; empty if the node has only memory
  std::optional<std::uint64_t> memory_bytes{};
};

/// Caches of the machine that have equal level, type and size.
struct Cache {
  int level = 1;
  std::string type{};       ///< one of "data", "instruction", "unified"
  std::uint64_t bytes = 0;  ///< bytes of one cache
  int count = 0;
  int sharers = 1;  ///< number of processors that share one cache
};

/// Facts that the kernel reports about the machine. Facts that the kernel does not report are empty.
struct HostFacts {
  std::string name{};       ///< host name
  std::string processor{};  ///< name, e.g. "Intel(R) Xeon(R) ..."
  int processors = 0;       ///< number of online processors (hyper-threads)
  int usable = 0;           ///< number of processors on which this process may run
  std::optional<int> cores{};
  std::optional<int> sockets{};
  std::vector<NumaNode> numa{};
  std::vector<Cache> caches{};  ///< caches of the machine, ordered by level
  std::optional<std::uint64_t> memory_bytes{};
};

/// Reads the folders sys and proc below `root`; `name` and `usable` come from the running system. A missing file is no
/// error.
[[nodiscard]] HostFacts read_host(const std::string& root = "");

/// The NUMA node and the link of a PCI device.
struct PciFacts {
  std::optional<int> numa_node{};
  std::optional<int> generation{};  ///< PCIe generation that device and slot support
  std::optional<int> width{};
  std::optional<int> generation_now{};  ///< present generation; lower while a GPU is idle
  std::optional<int> width_now{};
};
/// Reads the facts about the PCI device with address `pci` ("0000:3b:00.0", upper or lower case) below `root`.
[[nodiscard]] PciFacts read_pci(const std::string& pci, const std::string& root = "");

/// Returns the PCIe generation of a text such as "16.0 GT/s PCIe" (PCI Express Base Specification: 2.5, 5, 8, 16, 32,
/// 64 GT/s); empty for other texts.
[[nodiscard]] std::optional<int> pcie_generation(const std::string& speed);

/// The measured speed of a copy in the host's memory. Both arrays are larger than the caches, each thread copies its
/// own part, and the best of several repetitions counts. Bytes read and bytes written both count, as in STREAM.
struct CopySpeed {
  double bytes_per_second = 0;
  std::uint64_t array_bytes = 0;
  int threads = 1;
  int repetitions = 0;
};
/// Measures for about `seconds` s, with two arrays of `array_bytes` bytes each. Throws OutOfMemory.
[[nodiscard]] CopySpeed measure_copy(std::uint64_t array_bytes, double seconds);
/// Returns the size of an array for measure_copy(): four times the bytes of all caches of the last level, at least 64
/// MiB, at most 2 GiB and an eighth of the memory.
[[nodiscard]] std::uint64_t copy_array_bytes(const HostFacts& host);

}  // namespace lockstep::tools
