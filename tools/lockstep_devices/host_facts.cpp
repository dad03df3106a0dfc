#include "tools/lockstep_devices/host_facts.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/context/parallel.hpp>
#include <lockstep/runtime/machine/processors.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

/// Returns the first line of a file; an empty text if the file cannot be read.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::int64_t> number_of(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

std::optional<int> integer_of(const std::string& path) {
  const std::optional<std::int64_t> value = number_of(line_of(path));
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

/// Returns, sorted, all numbers N for which `folder` has a file or folder called PREFIX<N> (PREFIX is `prefix`).
std::vector<int> numbered(const std::string& folder, const std::string& prefix) {
  std::vector<int> numbers;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    const bool digits = name.size() > prefix.size() && name.starts_with(prefix) &&
                        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                                    [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
    if (digits) {
      numbers.push_back(std::stoi(name.substr(prefix.size())));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Returns the number of bytes in the line "... KEY:   1234 kB" of the file at `path`, /proc/meminfo or a node's
/// meminfo.
std::optional<std::uint64_t> kilobytes(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (const std::size_t at = line.find(key + ":"); at != std::string::npos) {
      std::istringstream words(line.substr(at + key.size() + 1));
      std::uint64_t value = 0;
      return words >> value ? std::optional(value * 1024) : std::nullopt;
    }
  }
  return std::nullopt;
}

/// Returns the bytes of a cache size such as "32768K" or "2M".
std::uint64_t cache_bytes(const std::string& size) {
  const std::uint64_t value = static_cast<std::uint64_t>(number_of(size).value_or(0));
  const char unit = size.empty() ? ' ' : size.back();
  return value * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::optional<int> pcie_generation(const std::string& speed) {
  double rate = 0;
  std::istringstream words(speed);
  constexpr std::array<double, 6> kRates{2.5, 5, 8, 16, 32, 64};
  if (words >> rate) {
    for (std::size_t i = 0; i < kRates.size(); ++i) {
      if (rate == kRates[i]) {
        return static_cast<int>(i) + 1;
      }
    }
  }
  return std::nullopt;
}

HostFacts read_host(const std::string& root) {
  HostFacts host;
  std::array<char, 256> name{};
  static_cast<void>(::gethostname(name.data(), name.size() - 1));
  host.name = name.data();
  host.usable = ProcessorSet::of_this_thread().count();

  std::ifstream cpuinfo(root + "/proc/cpuinfo");
  for (std::string line; host.processor.empty() && std::getline(cpuinfo, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      host.processor = line.substr(line.find(": ") + 2);
    }
  }
  host.memory_bytes = kilobytes(root + "/proc/meminfo", "MemTotal");

  const std::string cpus = root + "/sys/devices/system/cpu/";
  host.processors = ProcessorSet::parse(line_of(cpus + "online")).count();
  std::set<std::pair<int, int>> cores;
  std::set<int> sockets;
  // Maps a kind of cache to the sets of processors that share one cache.
  std::map<std::tuple<int, std::string, std::uint64_t>, std::set<std::string>> caches;
  for (const int cpu : numbered(cpus, "cpu")) {
    const std::string folder = cpus + "cpu" + std::to_string(cpu) + "/";
    const std::optional<int> core = integer_of(folder + "topology/core_id");
    const std::optional<int> socket = integer_of(folder + "topology/physical_package_id");
    if (core && socket) {
      cores.emplace(*socket, *core);
      sockets.insert(*socket);
    }
    for (const int i : numbered(folder + "cache", "index")) {
      const std::string cache = folder + "cache/index" + std::to_string(i) + "/";
      const std::optional<int> level = integer_of(cache + "level");
      const std::uint64_t bytes = cache_bytes(line_of(cache + "size"));
      if (level && bytes > 0) {
        caches[{*level, lower(line_of(cache + "type")), bytes}].insert(line_of(cache + "shared_cpu_list"));
      }
    }
  }
  if (!cores.empty()) {
    host.cores = static_cast<int>(cores.size());
    host.sockets = static_cast<int>(sockets.size());
  }
  for (const auto& [kind, sharing] : caches) {
    const auto& [level, type, bytes] = kind;
    host.caches.push_back({.level = level,
                           .type = type,
                           .bytes = bytes,
                           .count = static_cast<int>(sharing.size()),
                           .sharers = ProcessorSet::parse(*sharing.begin()).count()});
  }
  const std::string nodes = root + "/sys/devices/system/node/";
  for (const int node : numbered(nodes, "node")) {
    const std::string folder = nodes + "node" + std::to_string(node) + "/";
    host.numa.push_back({.index = node,
                         .processors = line_of(folder + "cpulist"),
                         .memory_bytes = kilobytes(folder + "meminfo", "MemTotal")});
  }
  return host;
}

PciFacts read_pci(const std::string& pci, const std::string& root) {
  const std::string folder = root + "/sys/bus/pci/devices/" + lower(pci) + "/";
  PciFacts facts;
  facts.numa_node = integer_of(folder + "numa_node");
  if (facts.numa_node && *facts.numa_node < 0) {  // the kernel writes -1 if it does not know the node
    facts.numa_node.reset();
  }
  const auto positive = [&](const char* name) {
    const std::optional<int> value = integer_of(folder + name);
    return value && *value > 0 ? value : std::nullopt;
  };
  facts.generation = pcie_generation(line_of(folder + "max_link_speed"));
  facts.width = positive("max_link_width");
  facts.generation_now = pcie_generation(line_of(folder + "current_link_speed"));
  facts.width_now = positive("current_link_width");
  return facts;
}

std::uint64_t copy_array_bytes(const HostFacts& host) {
  constexpr std::uint64_t kLeast = std::uint64_t{64} << 20;
  std::uint64_t largest = 0;
  for (const Cache& cache : host.caches) {  // `caches` is sorted by level, so the last level counts
    largest = cache.bytes * static_cast<std::uint64_t>(cache.count);
  }
  constexpr std::uint64_t kMost = std::uint64_t{2} << 30;
  const std::uint64_t room = std::max(host.memory_bytes.value_or(0) / 8, kLeast);
  return std::clamp(4 * largest, kLeast, std::min(kMost, room));
}

CopySpeed measure_copy(std::uint64_t array_bytes, double seconds) {
  CpuContext context;
  const Buffer source(static_cast<std::size_t>(array_bytes), context);
  const Buffer target(static_cast<std::size_t>(array_bytes), context);
  const auto count = static_cast<std::int64_t>(array_bytes);
  constexpr std::int64_t kGrain = 1 << 16;
  std::byte* from = source.data();
  std::byte* to = target.data();
  // A page is placed on the NUMA node of the thread that writes it first. So each thread first writes its own part.
  parallel_ranges(context, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memset(from + begin, 1, static_cast<std::size_t>(end - begin));
    std::memset(to + begin, 2, static_cast<std::size_t>(end - begin));
  });
  using Clock = std::chrono::steady_clock;
  const auto stop = Clock::now() + std::chrono::duration<double>(seconds);
  CopySpeed speed{.array_bytes = array_bytes, .threads = context.threads()};
  do {
    const auto start = Clock::now();
    parallel_ranges(context, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
    });
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    speed.bytes_per_second = std::max(speed.bytes_per_second, 2.0 * static_cast<double>(array_bytes) / took);
    ++speed.repetitions;
  } while (speed.repetitions < 3 || Clock::now() < stop);
  return speed;
}

}  // namespace lockstep::tools
