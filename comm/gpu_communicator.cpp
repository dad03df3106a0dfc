#include <lockstep/comm/gpu_communicator.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include <lockstep/comm/error.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

constexpr const char* kAllow = "LOCKSTEP_ALLOW_SHARED_GPU";

std::string version_text(int version) {
  return concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace

bool shared_gpu_allowed() {
  const char* value = std::getenv(kAllow);
  const std::string_view text = value == nullptr ? "" : value;
  require<UsageError>(text.empty() || text == "0" || text == "1", kAllow, " is '", text, "', expected 0 or 1");
  return text == "1";
}

std::vector<std::pair<std::string, std::string>> shared_gpu_environment(int rank) {
  return {
      {"NCCL_HOSTID", concat("lockstep-rank-", rank)},
      {"NCCL_NET", "Socket"},
      {"NCCL_NET_PLUGIN", "none"},
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_SOCKET_IFNAME", "lo"},
      {"NCCL_SOCKET_FAMILY", "AF_INET"},  // IPv4, because NCCL ignores the IPv6 loopback interface
      {"NCCL_MNNVL_ENABLE", "0"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_COLLNET_ENABLE", "0"},
      {"NCCL_GIN_ENABLE", "0"},
      {"NCCL_ALGO", "Ring"},  // algorithm Ring with protocol Simple needs the fewest time slices when ranks share a GPU
      {"NCCL_PROTO", "Simple"},
      {"NCCL_MIN_CTAS", "1"},
      {"NCCL_MAX_CTAS", "2"},
      {"NCCL_RAS_ENABLE", "0"},
      {"NCCL_CUMEM_HOST_ENABLE", "0"},
  };
}

void check_nccl_ranks(const std::vector<NcclRank>& ranks, int built) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    require<CollectiveError<DeviceError>>(ranks[r].failure.empty(), "nccl: rank ", r, " on ", ranks[r].host, ": ",
                                          ranks[r].failure);
  }
  const NcclRank& first = ranks.at(0);
  require<CollectiveError<UsageError>>(first.version / 10000 == built / 10000 && first.version / 100 >= built / 100,
                                       "nccl: ", version_text(first.version), " was loaded, expected ", built / 10000,
                                       '.', built / 100 % 100, " or a later ", built / 10000,
                                       ".x: lockstep was built with ", version_text(built));
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    require<CollectiveError<UsageError>>(ranks[r].version == first.version, "nccl: rank 0 on ", first.host, " loaded ",
                                         version_text(first.version), ", rank ", r, " on ", ranks[r].host, " ",
                                         version_text(ranks[r].version), ", expected one version");
    require<CollectiveError<UsageError>>(ranks[r].allow_shared_gpu == first.allow_shared_gpu, "nccl: rank ",
                                         first.allow_shared_gpu ? r : 0, " forbids ranks that share a GPU, rank ",
                                         first.allow_shared_gpu ? 0 : r, " allows them (", kAllow, ")");
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t other = 0; other < r; ++other) {
      if (ranks[r].gpu != ranks[other].gpu) {
        continue;
      }
      require<CollectiveError<UsageError>>(first.allow_shared_gpu, "nccl: ranks ", other, " and ", r, " on ",
                                           ranks[r].host, " both have ", ranks[r].gpu,
                                           ", expected a GPU for each rank (for tests: ", kAllow, "=1)");
      require<CollectiveError<UsageError>>(
          !ranks[r].host_id.empty() && ranks[r].host_id != ranks[other].host_id, "nccl: ranks ", other, " and ", r,
          " share ", ranks[r].gpu, ", but NCCL_HOSTID is '", ranks[other].host_id, "' and '", ranks[r].host_id,
          "', expected two names (set_shared_gpu_environment() before the first NCCL call)");
      // Ranks that share a GPU talk through the loopback interface, so a rank on another host would never answer.
      const auto away =
          std::find_if(ranks.begin(), ranks.end(), [&](const NcclRank& rank) { return rank.host != first.host; });
      require<CollectiveError<UsageError>>(away == ranks.end(), "nccl: ranks ", other, " and ", r, " share ",
                                           ranks[r].gpu, ", and ranks are on ", first.host, " and ",
                                           away == ranks.end() ? first.host : away->host,
                                           "; expected one host for ranks that share a GPU");
    }
  }
}

}  // namespace lockstep::comm
