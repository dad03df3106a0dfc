#include "tools/lockstep_scale/cluster.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::tools {
namespace {

// NCCL's constants (src/graph/tuning.cc): latencies in microseconds, bandwidths in GB/s (per channel unless noted), and
// factors.

enum Protocol : std::size_t { kLL, kLL128, kSimple };
constexpr std::array<std::string_view, 3> kProtocols{"LL", "LL128", "Simple"};
using ByProtocol = std::array<double, 3>;

constexpr ByProtocol kTreeBase{6.8, 14.0, 8.4};
constexpr ByProtocol kRingBase{6.6, 14.0, 8.4};
constexpr ByProtocol kTreeNvlink{0.6, 1.25, 4.0};
constexpr ByProtocol kRingNvlink{0.6, 1.9, 3.4};
constexpr ByProtocol kTreeNetwork{5.0, 8.5, 14.0};
constexpr ByProtocol kRingNetwork{2.7, 4.0, 14.0};
constexpr double kNvls = 25;
constexpr double kNvlsTreeNetwork = 20.9;
/// Least latency in microseconds of a step of a ring that spans several nodes, because a host's processor starts each
/// step. For Simple, the latency is three times as long.
constexpr double kNetworkPost = 1;

/// Limits of a GPU generation's bandwidths (GB/s). Index 0: one node; 1: two nodes; 2: more nodes.
struct Limits {
  std::array<double, 3> ll;  ///< limit of all channels together; the other three limits are per channel
  std::array<double, 3> ring_ll128;
  std::array<double, 3> tree;
  std::array<double, 3> tree_ll128;
};
constexpr Limits kAmpere{{87.7, 39.0, 20.4}, {20.0, 20.0, 20.0}, {24.0, 23.6, 17.8}, {20.0, 20.0, 20.0}};
constexpr Limits kHopper{{141.0, 39.0, 20.4}, {36.7, 36.7, 36.7}, {38.7, 41.4, 36.0}, {36.7, 36.7, 29.0}};

/// Factors of a tree's bandwidth. First index: protocol; second index: log2(bytes / 64).
constexpr std::array<std::array<double, 23>, 3> kTreeCorrection{{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9},
}};

int log2_floor(std::uint64_t value) {
  return static_cast<int>(std::bit_width(value)) - 1;
}

/// The latency (us) and bandwidth (GB/s of the message) of a sum.
struct Line {
  double latency_us = 0;
  double bandwidth = 0;
  [[nodiscard]] double seconds(double bytes) const { return latency_us * 1e-6 + bytes / (bandwidth * 1e9); }
};

struct Shape {
  const Cluster& cluster;
  int gpus;
  int nodes;
  std::size_t kind;  ///< index into the arrays of Limits: 0 for one node, 1 for two, 2 for more

  [[nodiscard]] const Limits& limits() const { return cluster.generation == GpuGeneration::ampere ? kAmpere : kHopper; }
  /// Bus bandwidth of a node, GB/s. For two nodes NCCL takes the bandwidth of the links inside a node.
  [[nodiscard]] double bus() const { return (nodes <= 2 ? cluster.nvlink_bus : cluster.network_bus) * 1e-9; }
  [[nodiscard]] double hop(double published, Protocol protocol) const {
    return published + (protocol == kSimple ? 2 : 1) * cluster.network_latency_s * 1e6;
  }
};

double ring_bus(const Shape& s, Protocol protocol, double bus, std::size_t kind) {
  switch (protocol) {
    case kLL:
      return std::min(s.limits().ll.at(kind), bus * 0.5);
    case kLL128:
      return std::min(bus * 0.92, s.cluster.channels * s.limits().ring_ll128.at(kind));
    default:
      return bus;
  }
}

Line ring(const Shape& s, Protocol protocol, double bytes) {
  const int steps = 2 * (s.gpus - 1);
  const int between = s.nodes == 1 ? 0 : 2 * (s.nodes - 1);
  double within_us = kRingNvlink.at(protocol);
  if (s.nodes > 1) {
    within_us = std::max(within_us, kNetworkPost * (protocol == kSimple ? 3 : 1));
  }
  // With one GPU per node, nothing hides the network's latency, so a ring has the network latency of a tree.
  const double between_us = s.hop((s.gpus == s.nodes ? kTreeNetwork : kRingNetwork).at(protocol), protocol);
  Line line{.latency_us = kRingBase.at(protocol) + (steps - between) * within_us + between * between_us,
            .bandwidth = ring_bus(s, protocol, s.bus(), s.kind) * s.gpus / steps};
  if (protocol == kSimple && s.nodes > 1 && bytes / (1.0 * s.cluster.channels * s.gpus) >= 64) {
    line.latency_us *= 1.4;
  }
  return line;
}

Line tree(const Shape& s, Protocol protocol, double bytes) {
  double bus = std::min(s.bus() * 0.92, s.cluster.channels * s.limits().tree.at(s.kind));
  if (protocol == kLL) {
    bus = std::min(bus / 3.8, s.limits().ll.at(s.kind));
  } else if (protocol == kLL128) {
    bus = std::min(bus * (s.nodes == 1 ? 7.0 / 9 : 120.0 / 128), s.cluster.channels * s.limits().tree_ll128.at(s.kind));
  }
  const int size = log2_floor(static_cast<std::uint64_t>(bytes) >> 6U);
  if (size >= 0 && size < 23) {
    bus *= kTreeCorrection.at(protocol).at(static_cast<std::size_t>(size));
  }
  const double levels = log2_floor(static_cast<std::uint64_t>(s.nodes));
  return {.latency_us = kTreeBase.at(protocol) + 2 * ((s.gpus / s.nodes - 1) * kTreeNvlink.at(protocol) +
                                                      levels * s.hop(kTreeNetwork.at(protocol), protocol)),
          .bandwidth = bus / 2};
}

Line nvls(const Shape& s) {
  return {.latency_us = kNvls, .bandwidth = s.cluster.nvls_bus * 1e-9 * s.gpus / (2.0 * (s.gpus - 1))};
}

Line nvls_tree(const Shape& s) {
  const double network = s.cluster.network_bus * 1e-9 * (s.nodes <= 2 ? 2 : 1);
  const double levels = log2_floor(static_cast<std::uint64_t>(s.nodes));
  return {.latency_us = kNvls + 2 * levels * s.hop(kNvlsTreeNetwork, kSimple),
          .bandwidth = std::min(s.cluster.nvls_bus * 1e-9, network) * s.gpus / (2.0 * (s.gpus - 1))};
}

/// Returns the seconds of a hierarchical all-reduce: a reduce-scatter by rings in the node, an all-reduce of each GPU's
/// shard by rings over the nodes, and an all-gather by rings in the node.
double hierarchical(const Shape& s, Protocol protocol, double bytes) {
  const int inside = s.cluster.gpus_per_node;
  const double node_bus = ring_bus(s, protocol, s.cluster.nvlink_bus * 1e-9, 0);
  const Line half{.latency_us = kRingBase.at(protocol) + (inside - 1) * kRingNvlink.at(protocol),
                  .bandwidth = node_bus * inside / (inside - 1)};
  Cluster shard = s.cluster;  // cluster of one GPU per node, with this GPU's share of the network
  shard.gpus_per_node = 1;
  shard.network_bus /= inside;
  shard.nvlink_bus = shard.network_bus;
  shard.channels = std::max(1, shard.channels / inside);
  const Shape between{.cluster = shard, .gpus = s.nodes, .nodes = s.nodes, .kind = s.kind};
  return 2 * half.seconds(bytes) + ring(between, protocol, bytes / inside).seconds(bytes / inside);
}

}  // namespace

Cluster known_cluster(const std::string& name) {
  if (name == "a100") {
    return {
        .name = name, .generation = GpuGeneration::ampere, .channels = 12, .nvlink_bus = 230e9, .network_bus = 192e9};
  }
  require<UsageError>(name == "h100", "system '", name, "', expected a100 or h100");
  return {.name = name, .channels = 16, .nvlink_bus = 384e9, .nvls_bus = 480e9, .network_bus = 384e9};
}

const char* name_of(SumAlgorithm algorithm) {
  static constexpr const char* kNames[] = {"ring", "tree", "nvls", "nvls tree", "hierarchical"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::vector<SumCost> sum_costs(const Cluster& cluster, int gpus, double bytes) {
  require<UsageError>(gpus >= 2, gpus, " GPUs, expected 2 or more");
  require<UsageError>(gpus <= cluster.gpus_per_node || gpus % cluster.gpus_per_node == 0, gpus,
                      " GPUs, expected a multiple of the ", cluster.gpus_per_node, " GPUs of a node, or fewer");
  const int nodes = std::max(1, gpus / cluster.gpus_per_node);
  const Shape shape{
      .cluster = cluster, .gpus = gpus, .nodes = nodes, .kind = static_cast<std::size_t>(std::min(nodes, 3) - 1)};
  std::vector<SumCost> costs;
  for (const Protocol protocol : {kLL, kLL128, kSimple}) {
    const std::string_view name = kProtocols.at(protocol);
    costs.push_back({SumAlgorithm::ring, name, ring(shape, protocol, bytes).seconds(bytes)});
    costs.push_back({SumAlgorithm::tree, name, tree(shape, protocol, bytes).seconds(bytes)});
    if (nodes > 1 && cluster.gpus_per_node > 1) {
      costs.push_back({SumAlgorithm::hierarchical, name, hierarchical(shape, protocol, bytes)});
    }
  }
  if (cluster.nvls_bus > 0 && nodes == 1) {
    costs.push_back({SumAlgorithm::nvls, kProtocols.at(kSimple), nvls(shape).seconds(bytes)});
  } else if (cluster.nvls_bus > 0) {
    costs.push_back({SumAlgorithm::nvls_tree, kProtocols.at(kSimple), nvls_tree(shape).seconds(bytes)});
  }
  return costs;
}

SumCost best_sum(const Cluster& cluster, int gpus, double bytes) {
  const std::vector<SumCost> costs = sum_costs(cluster, gpus, bytes);
  return *std::min_element(costs.begin(), costs.end(),
                           [](const SumCost& a, const SumCost& b) { return a.seconds < b.seconds; });
}

comm::CostModel sum_model(const Cluster& cluster, int gpus) {
  constexpr double kFirst = 1024;
  constexpr int kSizes = 25;  // number of sizes, from 1 KiB to 16 GiB
  std::vector<std::pair<double, double>> points;
  double least = 0;
  for (int i = 0; i < kSizes; ++i) {
    const double bytes = kFirst * static_cast<double>(std::int64_t{1} << i);
    least = std::max(least, best_sum(cluster, gpus, bytes).seconds);
    points.emplace_back(bytes, least);
  }
  comm::CostModel model;
  model.pieces.push_back({.first_bytes = 0, .alpha_s = points.front().second});
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    const auto& [bytes, seconds] = points[i];
    const double beta = (points[i + 1].second - seconds) / (points[i + 1].first - bytes);
    model.pieces.push_back({.first_bytes = bytes, .alpha_s = seconds - beta * bytes, .beta_s = beta});
  }
  comm::check(model, cluster.name);
  return model;
}

}  // namespace lockstep::tools
