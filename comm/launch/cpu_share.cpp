#include <lockstep/comm/launch/cpu_share.hpp>

#include <algorithm>
#include <cstdlib>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/machine/processors.hpp>
#include <lockstep/runtime/stream/context.hpp>

namespace lockstep::comm {

std::string CpuShare::description() const {
  std::string text = std::to_string(processors) + (processors == 1 ? " processor (" : " processors (") + mask + ")";
  if (sharers > 1) {
    text += ", shared by " + std::to_string(sharers) + " ranks";
  }
  return text;
}

CpuShare cpu_share(Session& session) {
  CpuShare share;
  const ProcessorSet processors = ProcessorSet::of_this_thread();
  share.processors = std::max(1, processors.count());
  share.mask = processors.empty() ? "unknown" : processors.text();
  const std::string key = std::to_string(session.node()) + " " + share.mask;
  const auto keys = all_gather_text(session.control(), key);
  share.sharers = static_cast<int>(std::count(keys.begin(), keys.end(), key));
  return share;
}

int compute_threads(const CpuShare& share) {
  return std::getenv("OMP_NUM_THREADS") != nullptr ? CpuContext().threads() : share.threads();
}

}  // namespace lockstep::comm
