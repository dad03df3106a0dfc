#include <lockstep/runtime/context/memory_summary.hpp>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/detail/control_groups.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

namespace lockstep {
namespace {

std::optional<std::size_t> number(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_prefix(begin);
  std::size_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) {
    return std::nullopt;  // the text is "max", or the number has more than 64 bits
  }
  return value;
}

/// Returns the number on the first line of the file `path` that begins with `key`.
std::optional<std::size_t> field(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) {
      return number(std::string_view(line).substr(key.size()));
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> first_number(const std::string& path) {
  return field(path, "");
}

std::size_t less(std::size_t a, std::size_t b) {
  return a > b ? a - b : 0;
}

/// Names of a control group's files, for the versions 2 and 1 of control groups.
struct GroupFiles {
  std::string_view limit;
  std::string_view used;
  std::string_view cache;  ///< key, in memory.stat, for the page cache that the kernel drops first
};
constexpr GroupFiles kVersion2{"/memory.max", "/memory.current", "inactive_file "};
constexpr GroupFiles kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
constexpr std::size_t kNoLimit = std::size_t{1} << 60;  // version 1 writes a number near 2^63 if there is no limit

void tighten(std::optional<HostMemory::Limit>& tightest, const GroupFiles& files, const std::string& folder) {
  const auto limit = first_number(concat(folder, files.limit));
  const auto used = first_number(concat(folder, files.used));
  if (limit.has_value() && used.has_value() && *limit < kNoLimit) {
    const std::size_t cache = field(folder + "/memory.stat", files.cache).value_or(0);
    const std::size_t available = less(*limit, less(*used, cache));
    if (!tightest.has_value() || available < tightest->available) {
      tightest = {.bytes = *limit, .available = available};
    }
  }
}

}  // namespace

HostMemory read_host_memory(const std::string& root) {
  HostMemory memory;
  const auto total = field(root + "/proc/meminfo", "MemTotal:");
  const auto available = field(root + "/proc/meminfo", "MemAvailable:");
  require<UnsupportedError>(total.has_value() && available.has_value(), "memory summary: ", root,
                            "/proc/meminfo has no MemTotal or no MemAvailable, expected both");
  memory.total = *total * 1024;
  memory.available = *available * 1024;
  memory.resident = field(root + "/proc/self/status", "VmRSS:").value_or(0) * 1024;
  detail::visit_control_groups(root, "memory", [&](bool version2, const std::string& folder) {
    tighten(memory.limit, version2 ? kVersion2 : kVersion1, folder);
  });
  return memory;
}

MemorySummary memory_summary(Context& context) {
  MemorySummary summary;
  summary.device = context.device();
  summary.resource = context.memory().usage();
  std::size_t ours = 0;
  if (summary.device.kind == DeviceKind::cuda) {
    const detail::DeviceMemory memory = detail::cuda_memory(summary.device);
    summary.total = memory.total;
    summary.free = memory.free;
    ours = summary.resource.has_value() ? summary.resource->in_use + summary.resource->cached : 0;
  } else {
    const HostMemory memory = read_host_memory();
    summary.limited = memory.limit.has_value() && memory.limit->bytes < memory.total;
    summary.total = summary.limited ? memory.limit->bytes : memory.total;
    summary.free = std::min(memory.available, summary.limited ? memory.limit->available : memory.available);
    summary.process = memory.resident;
    ours = memory.resident;
  }
  summary.others = less(less(summary.total, summary.free), ours);
  return summary;
}

std::string to_string(const MemorySummary& summary) {
  std::string text = concat(summary.device, ": ");
  if (summary.resource.has_value()) {
    text += concat(bytes_text(static_cast<double>(summary.resource->in_use)), " in use, ",
                   bytes_text(static_cast<double>(summary.resource->cached)), " cached, peak ",
                   bytes_text(static_cast<double>(summary.resource->peak)), "; ");
  }
  if (summary.process.has_value()) {
    text += concat("process ", bytes_text(static_cast<double>(*summary.process)), "; ");
  }
  return concat(text, "others ", bytes_text(static_cast<double>(summary.others)), "; free ",
                bytes_text(static_cast<double>(summary.free)), " of ", bytes_text(static_cast<double>(summary.total)),
                summary.limited ? " (limit of the control group)" : "");
}

}  // namespace lockstep
