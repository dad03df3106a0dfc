#include <lockstep/comm/launch/cpu_share.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/parallel.hpp>
#include <lockstep/runtime/machine/processors.hpp>

namespace lockstep::comm {

std::string CpuShare::description() const {
  std::string text = std::to_string(processors) + (processors == 1 ? " processor (" : " processors (") + mask + ")";
  if (quota) {
    text += concat(", a quota of ", *quota);
  }
  if (sharers > 1) {
    text += ", shared by " + std::to_string(sharers) + " ranks";
  }
  return text;
}

CpuShare cpu_share(Session& session) {
  CpuShare share;
  // With OMP_PROC_BIND=primary OpenMP's threads stay where the first one is.
  const ProcessorSet processors =
      openmp_keeps_one_place() ? ProcessorSet::of_this_thread() : ProcessorSet::of_process();
  share.quota = processor_quota();
  share.mask = processors.empty() ? "unknown" : processors.text();
  const std::string key = std::to_string(session.node()) + " " + share.mask;
  const auto keys = all_gather_text(session.control(), key);
  share.sharers = static_cast<int>(std::count(keys.begin(), keys.end(), key));
  share.processors = std::max(1, processors.count());
  if (share.quota) {  // of all ranks of the node: those with this mask have a part
    const double part = *share.quota * share.sharers / session.local_size();
    share.processors = std::max(1, std::min(share.processors, static_cast<int>(part)));
  }
  return share;
}

ComputeThreads compute_threads(const CpuShare& share, int asked) {
  const bool set = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int most = given_threads(std::numeric_limits<int>::max());
  const int wanted = asked > 0 ? asked : set ? default_threads() : share.threads();
  const char* const from = asked > 0 ? "as asked" : set ? "OMP_NUM_THREADS" : "its part of the processors";
  return {std::min(wanted, most), wanted < most ? from : "OMP_THREAD_LIMIT"};
}

}  // namespace lockstep::comm
