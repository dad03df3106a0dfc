#include <lockstep/comm/rank_device.hpp>

#include <algorithm>
#include <sstream>
#include <variant>

#include <lockstep/comm/text.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep::comm {

namespace {

using Uuids = std::vector<std::string>;

std::string amount(std::size_t count, std::string_view what) {
  return concat(count, ' ', what, count == 1 ? "" : "s");
}

template <class... Args>
void require_for(const DeviceRequest& request, bool ok, const Args&... message) {
  require<UsageError>(ok, "devices '", request.text(), "': ", message...);
}

/// GPUs beside ranks, one each.
void require_one_each(const DeviceRequest& request, std::size_t gpus, std::size_t ranks) {
  const bool automatic = std::holds_alternative<DeviceRequest::Automatic>(request.form());
  require_for(request, gpus == ranks || (automatic && gpus > ranks), amount(ranks, "rank"), " on this node for ",
              amount(gpus, "GPU"), ", expected one rank a GPU: start ", gpus, " on each node, or name ",
              amount(ranks, "GPU"));
}

std::string left_over(std::size_t gpus, std::size_t ranks) {
  return gpus > ranks ? concat(ranks, " of ", gpus, " GPUs of the node are used, one a rank") : std::string();
}

/// Each rank was handed one GPU.
RankDevice handed_out(const DeviceRequest& request, int local_rank, const std::vector<Uuids>& visible) {
  for (std::size_t i = 0; i < visible.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      require_for(request, visible[i] != visible[j], "local ranks ", j, " and ", i, " both see ", visible[i][0],
                  " and nothing else, expected one GPU for each, or all GPUs for all");
    }
  }
  if (const auto* first = std::get_if<DeviceRequest::FirstGpus>(&request.form())) {
    require_one_each(request, static_cast<std::size_t>(first->count), visible.size());
  }
  if (const auto* list = std::get_if<DeviceRequest::Gpus>(&request.form())) {
    require_one_each(request, list->named.size(), visible.size());
    const auto& named = list->named[static_cast<std::size_t>(local_rank)];
    const std::string& uuid = visible[static_cast<std::size_t>(local_rank)][0];
    require_for(request, std::holds_alternative<std::string>(named) && uuid.starts_with(std::get<std::string>(named)),
                "local rank ", local_rank, " was handed ", uuid, " by its launcher, expected auto");
  }
  return {.device = Device::cuda(0)};
}

}  // namespace

RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int local_rank,
                          const std::vector<Uuids>& visible) {
  const std::size_t ranks = visible.size();
  const bool handed =
      ranks > 1 && std::all_of(visible.begin(), visible.end(), [](const Uuids& u) { return u.size() == 1; });
  const auto* host = std::get_if<DeviceRequest::Host>(&request.form());
  if (handed && host == nullptr) {
    return handed_out(request, local_rank, visible);
  }
  if (host == nullptr) {
    for (std::size_t i = 1; i < ranks; ++i) {
      require_for(request, visible[i] == visible[0], "local rank 0 sees ", amount(visible[0].size(), "GPU"),
                  " and local rank ", i, ' ', amount(visible[i].size(), "GPU"),
                  visible[i].size() == visible[0].size() ? ", others" : "",
                  "; expected the same GPUs for all, or one for each");
    }
  }
  const DeviceSelection selection = select_devices(request, gpus);
  if (selection.on_host()) {
    require_for(request, selection.host_ranks == 0 || selection.host_ranks == static_cast<int>(ranks),
                amount(ranks, "rank"), " on this node, expected ", selection.host_ranks);
    return {.device = Device::cpu()};
  }
  require_one_each(request, selection.devices.size(), ranks);
  return {.device = selection.devices[static_cast<std::size_t>(local_rank)],
          .note = left_over(selection.devices.size(), ranks)};
}

RankDevice device_of_rank(Session& session, const DeviceRequest& request) {
  std::vector<GpuInfo> gpus;
  session.agree([&] { gpus = list_gpus(); });
  std::string mine = std::to_string(session.node());
  for (const GpuInfo& gpu : gpus) {
    mine += ' ' + gpu.uuid;
  }
  std::vector<Uuids> visible;
  for (const std::string& line : all_gather_text(session.control(), mine)) {
    std::istringstream words(line);
    int node = -1;
    words >> node;
    if (node == session.node()) {
      Uuids& uuids = visible.emplace_back();
      for (std::string uuid; words >> uuid;) {
        uuids.push_back(uuid);
      }
    }
  }
  RankDevice result;
  session.agree([&] { result = device_of_rank(request, gpus, session.local_rank(), visible); });
  return result;
}

}  // namespace lockstep::comm
