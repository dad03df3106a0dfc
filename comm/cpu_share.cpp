#include <lockstep/comm/cpu_share.hpp>

#include <sched.h>

#include <algorithm>

#include <lockstep/comm/text.hpp>

namespace lockstep::comm {

namespace {

/// The affinity mask of this thread as ranges, and how many processors it holds.
std::string affinity_mask(int& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  processors = 1;
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return "unknown";
  }
  processors = std::max(1, CPU_COUNT(&set));
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) {
      continue;
    }
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + std::to_string(cpu) + (last > cpu ? "-" + std::to_string(last) : "");
    cpu = last;
  }
  return text;
}

}  // namespace

std::string CpuShare::description() const {
  std::string text = std::to_string(processors) + (processors == 1 ? " processor (" : " processors (") + mask + ")";
  if (sharers > 1) {
    text += ", shared by " + std::to_string(sharers) + " ranks";
  }
  return text;
}

CpuShare cpu_share(Session& session) {
  CpuShare share;
  share.mask = affinity_mask(share.processors);
  const std::string key = std::to_string(session.node()) + " " + share.mask;
  const auto keys = all_gather_text(session.control(), key);
  share.sharers = static_cast<int>(std::count(keys.begin(), keys.end(), key));
  return share;
}

}  // namespace lockstep::comm
