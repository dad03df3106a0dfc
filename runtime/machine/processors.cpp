#include <lockstep/runtime/machine/processors.hpp>

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/detail/control_groups.hpp>

namespace lockstep {

namespace {

constexpr int kMostProcessors = 1 << 16;

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

ProcessorSet ProcessorSet::parse(std::string_view given) {
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\t'; };
  std::string_view text = given;
  while (!text.empty() && space(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && space(text.back())) {
    text.remove_suffix(1);
  }
  std::set<int> numbers;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  const auto number = [&] {
    int value = -1;
    const auto [next, error] = std::from_chars(at, end, value);
    require<DataError>(error == std::errc() && value >= 0 && value < kMostProcessors, "processors '", given,
                       "', expected numbers and ranges, e.g. 0-3,8");
    at = next;
    return value;
  };
  while (at != end) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    require<DataError>(first <= last && (at == end || (*at == ',' && at + 1 != end)), "processors '", given,
                       "', expected numbers and ranges, e.g. 0-3,8");
    for (int processor = first; processor <= last; ++processor) {
      numbers.insert(processor);
    }
    at += at == end ? 0 : 1;
  }
  return of({numbers.begin(), numbers.end()});
}

ProcessorSet ProcessorSet::of_this_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ProcessorSet set;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &mask)) {
        set.numbers_.push_back(processor);
      }
    }
  }
  return set;
}

ProcessorSet ProcessorSet::of(const std::vector<int>& numbers) {
  const std::set<int> sorted(numbers.begin(), numbers.end());
  ProcessorSet set;
  set.numbers_.assign(sorted.begin(), sorted.end());
  return set;
}

ProcessorSet ProcessorSet::of_process() {
  const ProcessorSet own = of_this_thread();
  bool bound = false;
  std::vector<int> all;
  for (const std::vector<int>& place : openmp_places()) {
    bound = bound || of(place) == own;
    all.insert(all.end(), place.begin(), place.end());
  }
  return bound ? of(all) : own;
}

bool ProcessorSet::contains(int processor) const {
  return std::binary_search(numbers_.begin(), numbers_.end(), processor);
}

ProcessorSet ProcessorSet::intersection(const ProcessorSet& other) const {
  ProcessorSet both;
  std::set_intersection(numbers_.begin(), numbers_.end(), other.numbers_.begin(), other.numbers_.end(),
                        std::back_inserter(both.numbers_));
  return both;
}

std::string ProcessorSet::text() const {
  std::string text;
  for (auto first = numbers_.begin(); first != numbers_.end();) {
    auto last = first;
    while (last + 1 != numbers_.end() && *(last + 1) == *last + 1) {
      ++last;
    }
    text += concat(text.empty() ? "" : ",", *first, last == first ? "" : concat('-', *last));
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

ProcessorSet online_processors() {
  return ProcessorSet::parse(read_line("/sys/devices/system/cpu/online"));
}

std::vector<NumaNode> numa_nodes(const std::string& root) {
  const std::string folder = root + "/devices/system/node/";
  std::vector<NumaNode> nodes;
  // The file "online" lists numbers of NUMA nodes, in the same format as a list of processors.
  const ProcessorSet online = ProcessorSet::parse(read_line(folder + "online"));
  for (const int number : online.numbers()) {
    nodes.push_back({number, ProcessorSet::parse(read_line(concat(folder, "node", number, "/cpulist")))});
  }
  return nodes;
}

std::optional<double> processor_quota(const std::string& root) {
  std::optional<double> least;
  detail::visit_control_groups(root, "cpu", [&](bool version2, const std::string& folder) {
    double quota = -1;
    double period = 100000;
    if (version2) {
      std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" leaves `quota` unset
    } else {
      std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
      std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    if (quota > 0 && period > 0 && quota / period < least.value_or(kMostProcessors)) {
      least = quota / period;
    }
  });
  return least;
}

int count_cores(const ProcessorSet& processors) {
  std::set<std::string> cores;
  for (const int processor : processors.numbers()) {
    const std::string siblings =
        read_line(concat("/sys/devices/system/cpu/cpu", processor, "/topology/thread_siblings_list"));
    cores.insert(siblings.empty() ? std::to_string(processor) : siblings);
  }
  return static_cast<int>(cores.size());
}

}  // namespace lockstep
