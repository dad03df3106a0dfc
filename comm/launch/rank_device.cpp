#include <lockstep/comm/launch/rank_device.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>
#include <variant>

#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::comm {

namespace {

using Uuids = std::vector<std::string>;

bool for_host(const DeviceRequest& request) {
  return std::holds_alternative<DeviceRequest::Host>(request.form());
}

std::string amount(std::size_t count, std::string_view what) {
  return concat(count, ' ', what, count == 1 ? "" : "s");
}

template <class... Args>
void require_for(const DeviceRequest& request, bool ok, const Args&... message) {
  require<UsageError>(ok, "devices '", request.text(), "': ", message...);
}

/// Requires one GPU for each rank of the node; auto may leave GPUs unused. `wanted` is the number of GPUs that the
/// request names, `there` is the number of GPUs on the node, and `ranks` is the number of ranks on the node.
void require_one_each(const DeviceRequest& request, std::size_t wanted, std::size_t there, std::size_t ranks) {
  const bool automatic = std::holds_alternative<DeviceRequest::Automatic>(request.form());
  const std::string instead = ranks <= there ? concat("name ", amount(ranks, "GPU")) : std::string("take cpu");
  require_for(request, wanted == ranks || (automatic && wanted > ranks), amount(ranks, "rank"), " on this node for ",
              amount(wanted, "GPU"), ", expected one rank a GPU: start ", amount(wanted, "rank"), " on each node, or ",
              instead);
}

/// Requires that each rank sees at least one GPU, or that no rank sees a GPU.
void require_alike(const DeviceRequest& request, const std::vector<RankView>& ranks) {
  const auto sees_none = [](const RankView& view) { return view.gpus.empty(); };
  const auto without = std::find_if(ranks.begin(), ranks.end(), sees_none);
  const auto with = std::find_if_not(ranks.begin(), ranks.end(), sees_none);
  if (without != ranks.end() && with != ranks.end()) {
    require_for(request, false, "rank ", without - ranks.begin(), " on node ", without->node,
                " sees no GPU, while rank ", with - ranks.begin(), " on node ", with->node, " sees ", with->gpus.size(),
                "; expected GPUs for all, or --devices cpu");
  }
}

/// Returns the device of a rank on a node whose launcher has assigned one GPU to each rank.
RankDevice handed_out(const DeviceRequest& request, std::size_t local_rank, const std::vector<Uuids>& visible) {
  for (std::size_t i = 0; i < visible.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      require_for(request, visible[i] != visible[j], "local ranks ", j, " and ", i, " both see ", visible[i][0],
                  " and nothing else, expected one GPU for each, or all GPUs for all");
    }
  }
  if (const auto* first = std::get_if<DeviceRequest::FirstGpus>(&request.form())) {
    require_one_each(request, static_cast<std::size_t>(first->count), visible.size(), visible.size());
  }
  if (const auto* list = std::get_if<DeviceRequest::Gpus>(&request.form())) {
    require_one_each(request, list->named.size(), visible.size(), visible.size());
    const auto* name = std::get_if<std::string>(&list->named[local_rank]);
    const auto fits = [&](const Uuids& uuids) { return name != nullptr && uuids[0].starts_with(*name); };
    require_for(request, fits(visible[local_rank]), "local rank ", local_rank, " was handed ", visible[local_rank][0],
                " by its launcher, expected auto, or the UUIDs in the order of the local ranks");
    require_for(request, std::count_if(visible.begin(), visible.end(), fits) == 1, *name,
                " is the beginning of several UUIDs of the node");
  }
  return {.device = Device::cuda(0)};
}

void require_same_gpus(const DeviceRequest& request, const std::vector<Uuids>& visible) {
  const auto sorted = [](Uuids uuids) {
    std::sort(uuids.begin(), uuids.end());
    return uuids;
  };
  for (std::size_t i = 1; i < visible.size(); ++i) {
    const bool other_order = sorted(visible[i]) == sorted(visible[0]);
    require_for(request, visible[i] == visible[0], "local ranks 0 and ", i, " see ",
                other_order ? "the same GPUs in another order" : "different GPUs", " (", visible[0].size(), " and ",
                visible[i].size(), "), expected the same for all ranks of a node, or one for each");
  }
}

/// The ranks of one node, with the GPUs that each rank sees.
struct Node {
  std::vector<Uuids> visible{};
  std::size_t local_rank = 0;

  /// Returns true if each rank sees one GPU, and these GPUs are not all the same: then the launcher has assigned the
  /// GPUs.
  [[nodiscard]] bool handed_out() const {
    return std::all_of(visible.begin(), visible.end(), [](const Uuids& u) { return u.size() == 1; }) &&
           !std::all_of(visible.begin(), visible.end(), [&](const Uuids& u) { return u == visible[0]; });
  }
};

Node node_of(int rank, const std::vector<RankView>& ranks) {
  require<UsageError>(rank >= 0 && rank < static_cast<int>(ranks.size()), "device_of_rank: rank is ", rank,
                      ", expected 0 to ", static_cast<int>(ranks.size()) - 1);
  Node node;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].node == ranks[static_cast<std::size_t>(rank)].node) {
      node.local_rank = static_cast<int>(i) == rank ? node.visible.size() : node.local_rank;
      node.visible.push_back(ranks[i].gpus);
    }
  }
  return node;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

}  // namespace

RankDevice device_of_rank(const DeviceRequest& request, const std::vector<GpuInfo>& gpus, int rank,
                          const std::vector<RankView>& ranks, Sharing sharing) {
  const Node node = node_of(rank, ranks);
  const auto& [visible, local_rank] = node;
  const RankView& own = ranks[static_cast<std::size_t>(rank)];
  require<UsageError>(for_host(request) || gpus.size() == own.gpus.size(), "device_of_rank: gpus has ", gpus.size(),
                      " GPUs, expected the ", own.gpus.size(), " that rank ", rank, " sees");
  if (const auto* host = std::get_if<DeviceRequest::Host>(&request.form())) {
    require_for(request, host->ranks == 0 || host->ranks == static_cast<int>(visible.size()),
                amount(visible.size(), "rank"), " on this node, expected ", host->ranks);
    return {.device = Device::cpu()};
  }
  require_alike(request, ranks);
  if (node.handed_out()) {
    return handed_out(request, local_rank, visible);
  }
  require_same_gpus(request, visible);
  const DeviceSelection selection = select_devices(request, gpus);
  if (selection.on_host()) {
    return {.device = Device::cpu()};
  }
  const std::size_t wanted = selection.devices.size();
  if (sharing == Sharing::allowed && visible.size() > wanted) {
    return {.device = selection.devices[local_rank % wanted],
            .note = concat(visible.size(), " ranks share ", wanted, wanted == 1 ? " GPU" : " GPUs", ", for tests only"),
            .shared = true};
  }
  require_one_each(request, wanted, gpus.size(), visible.size());
  return {.device = selection.devices[local_rank],
          .note = wanted > visible.size()
                      ? concat(visible.size(), " of ", wanted, " GPUs of the node are used, one a rank")
                      : std::string()};
}

std::string promised_gpus(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"}) {
    const std::string_view value = value_of(environment, name);
    if (!value.empty() && value != "-1" && value != "NoDevFiles") {
      return concat(name, '=', value);
    }
  }
  return {};
}

void check_usable(const DeviceRequest& request, int rank, const std::vector<RankView>& ranks) {
  const auto* usable = std::get_if<DeviceRequest::Usable>(&request.form());
  if (usable == nullptr) {
    return;
  }
  const Node node = node_of(rank, ranks);
  require_alike(request, ranks);
  require_for(request, !node.visible[0].empty(), "this process can use no GPU, expected auto or cpu");
  require_for(request, !node.handed_out(), "the launcher has handed each rank a GPU of its own, expected auto");
  require_same_gpus(request, node.visible);
  if (usable->count != -1) {
    require_one_each(request, static_cast<std::size_t>(usable->count), node.visible[0].size(), node.visible.size());
  }
}

void require_equal_nodes(const DeviceRequest& request, const std::vector<RankView>& ranks,
                         const std::vector<std::string>& gpus) {
  require<UsageError>(ranks.size() == gpus.size(), "require_equal_nodes: gpus has ", gpus.size(),
                      " names, expected one for each of the ", ranks.size(), " ranks");
  std::map<int, std::map<std::string, int>> nodes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ++nodes[ranks[rank].node][gpus[rank]];
  }
  const auto text = [](const std::map<std::string, int>& kinds) {
    return joined(kinds, " and ", [](const auto& kind) { return concat(kind.second, " x ", kind.first); });
  };
  for (const auto& [node, kinds] : nodes) {
    const auto& [first, expected] = *nodes.begin();
    require_for(request, kinds == expected, "node ", first, " computes on ", text(expected), ", node ", node, " on ",
                text(kinds), "; expected equal GPUs on all nodes");
  }
}

RankDevice device_of_rank(Session& session, const DeviceRequest& request, const NodeGpus& machine) {
  // The number of collective calls below depends on the request, so the request must be equal on all ranks.
  require_same_on_all_ranks(session.control(), "devices " + request.text());
  std::vector<GpuInfo> gpus;
  session.agree([&] {
    if (!for_host(request)) {
      gpus = machine.list();
    }
  });
  std::string mine = std::to_string(session.node());
  for (const GpuInfo& gpu : gpus) {
    mine += ' ' + gpu.uuid;
  }
  std::vector<RankView> ranks;
  for (const std::string& line : all_gather_text(session.control(), mine)) {
    const std::vector<std::string> words = words_of(line);
    ranks.push_back({.node = std::stoi(words.at(0)), .gpus = {words.begin() + 1, words.end()}});
  }
  session.agree([&] { check_usable(request, session.rank(), ranks); });

  DeviceRequest placed = request;
  std::shared_ptr<const UsableGpus> claims;
  if (const auto* usable = std::get_if<DeviceRequest::Usable>(&request.form())) {
    std::string found;
    session.agree([&] {
      if (session.local_rank() == 0) {
        claims = std::make_shared<const UsableGpus>(machine.find_usable(usable->count));
        for (const GpuInfo& gpu : claims->gpus) {
          found += gpu.uuid + ' ';
        }
      }
    });
    const std::vector<std::string> of_ranks = all_gather_text(session.control(), found);
    const auto first =
        std::find_if(ranks.begin(), ranks.end(), [&](const RankView& v) { return v.node == session.node(); });
    placed = request.with_gpus(words_of(of_ranks[static_cast<std::size_t>(first - ranks.begin())]));
  }
  RankDevice result;
  session.agree([&] {
    const bool automatic = std::holds_alternative<DeviceRequest::Automatic>(request.form());
    const bool none = std::all_of(ranks.begin(), ranks.end(), [](const RankView& view) { return view.gpus.empty(); });
    if (none && !automatic && !for_host(request)) {  // only this case needs why_none(), which takes time
      require_for(request, false, machine.why_none(), "; expected auto or cpu");
    }
    result = device_of_rank(placed, gpus, session.rank(), ranks, machine.sharing);
    if (result.device != Device::cpu()) {
      machine.check(result.device);
    } else if (automatic) {
      const std::string promised = machine.promised();
      require_for(request, promised.empty(), "this job was given GPUs (", promised,
                  "), and none can be used: ", machine.why_none(), "; expected GPUs, or --devices cpu");
      result.note = "devices 'auto': the CPU, because " + machine.why_none();
    }
  });
  result.claims = std::move(claims);
  std::string kind;
  if (result.device != Device::cpu()) {
    const GpuInfo& gpu = gpus.at(static_cast<std::size_t>(result.device.index));
    kind = concat(gpu.name, ", ", gpu.memory_bytes / 1000000000, " GB");
  }
  const std::vector<std::string> kinds = all_gather_text(session.control(), kind);
  session.agree([&] {
    if (!kind.empty()) {
      require_equal_nodes(request, ranks, kinds);
    }
  });
  return result;
}

RankDevice place_rank(Session& session, const DeviceRequest& request, NodeGpus machine) {
  session.agree([&] { machine.sharing = shared_gpu_allowed() ? Sharing::allowed : Sharing::forbidden; });
  RankDevice placed = device_of_rank(session, request, machine);
  session.agree([&] {
    if (placed.device != Device::cpu()) {
      machine.make_current(placed.device);
    }
  });
  if (placed.shared) {
    set_shared_gpu_environment(session.rank());
  }
  return placed;
}

void set_shared_gpu_environment(int rank) {
  for (const auto& [name, value] : shared_gpu_environment(rank)) {
    ::setenv(name.c_str(), value.c_str(), 0);
  }
}

}  // namespace lockstep::comm
