#include <lockstep/comm/launch/cpu_share.hpp>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/machine/processors.hpp>

namespace lockstep::comm {

namespace {

/// Returns the first number of a list such as "4,2" in the environment variable `name`. Returns 0 if the variable is
/// not set, or if the list does not begin with a positive number, because OpenMP ignores such a list.
std::int64_t first_number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) {
    return 0;
  }
  char* end = nullptr;
  const std::int64_t number = std::strtol(text, &end, 10);
  const bool ends = *end == '\0' || *end == ',' || std::isspace(static_cast<unsigned char>(*end)) != 0;
  return ends && number <= std::numeric_limits<int>::max() ? std::max<std::int64_t>(number, 0) : 0;
}

}  // namespace

std::string CpuShare::description() const {
  std::string text = concat(counted(processors, "processor"), " (", mask, ')');
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
  // With OMP_PROC_BIND=primary, all of OpenMP's threads stay at one place, so only that place's processors count.
  const ProcessorSet processors =
      openmp_keeps_one_place() ? ProcessorSet::of_this_thread() : ProcessorSet::of_process();
  share.quota = processor_quota();
  share.mask = processors.empty() ? "unknown" : processors.text();
  const std::string key = std::to_string(session.node()) + " " + share.mask;
  const auto keys = all_gather_text(session.control(), key);
  share.sharers = static_cast<int>(std::count(keys.begin(), keys.end(), key));
  share.processors = std::max(1, processors.count());
  if (share.quota) {  // each rank of the node gets an equal part of the quota; `part` is the sum of the sharers' parts
    const double part = *share.quota * share.sharers / session.local_size();
    share.processors = std::max(1, std::min(share.processors, static_cast<int>(part)));
  }
  return share;
}

ComputeThreads compute_threads(const CpuShare& share, int asked) {
  const int most = given_threads(std::numeric_limits<int>::max());
  const std::int64_t set = first_number("OMP_NUM_THREADS");
  const std::int64_t wanted = asked > 0 ? asked : set > 0 ? set : share.threads();
  const int count = asked > 0 || set == 0 ? static_cast<int>(std::min<std::int64_t>(wanted, most)) : default_threads();
  const char* const from = asked > 0 ? "as asked" : set > 0 ? "OMP_NUM_THREADS" : "its part of the processors";
  const char* const limit = first_number("OMP_THREAD_LIMIT") == most ? "OMP_THREAD_LIMIT" : "all that OpenMP gives";
  require<UsageError>(count <= kMostComputeThreads, "compute threads of a rank (", from, ") are ", count,
                      ", expected at most ", kMostComputeThreads);
  return {count, wanted > most ? limit : from};
}

}  // namespace lockstep::comm
