#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::tools {

/// The generation of GPUs; it selects NCCL's constants.
enum class GpuGeneration : unsigned char { ampere, hopper };

/// Equal nodes of GPUs. Bandwidths are bus bandwidths of a whole node in bytes per second, as nccl-tests prints them.
struct Cluster {
  std::string name;
  GpuGeneration generation = GpuGeneration::hopper;
  int gpus_per_node = 8;
  int channels = 16;             ///< channels of NCCL's rings and trees
  double nvlink_bus = 0;         ///< bandwidth of rings within a node
  double nvls_bus = 0;           ///< bandwidth of sums in the switch (NVLink SHARP); 0 if the switch cannot add
  double network_bus = 0;        ///< bandwidth between nodes: all network cards of a node together
  double network_latency_s = 0;  ///< latency of one hop in addition to NCCL's own constants
};

/// Returns the cluster "a100" (8 GPUs, 8 x 200 Gbit/s a node) or "h100" (8 GPUs, 8 x 400 Gbit/s a node). Throws
/// UsageError for other names.
[[nodiscard]] Cluster known_cluster(const std::string& name);

/// The algorithm that sums gradients.
enum class SumAlgorithm : unsigned char {
  ring,
  tree,
  nvls,          ///< sum in the switch of one node
  nvls_tree,     ///< sums in the switches of the nodes, a tree between them
  hierarchical,  ///< reduce-scatter in the node, a ring of shards between nodes, all-gather in the node
};
[[nodiscard]] const char* name_of(SumAlgorithm algorithm);

/// The cost of one algorithm and protocol.
struct SumCost {
  SumAlgorithm algorithm = SumAlgorithm::ring;
  std::string_view protocol;  ///< one of "LL", "LL128", "Simple"
  double seconds = 0;
};

/// Returns the seconds of an all-reduce of `bytes` over `gpus` GPUs for every algorithm and protocol that applies. Uses
/// the model by which NCCL chooses (2.28 to 2.30, src/graph/tuning.cc: base latency, latency per hop, bandwidth per
/// protocol, correction of trees by size), with its published constants. The hierarchical sum consists of NCCL's ring
/// in the node and its ring between nodes. Throws UsageError unless `gpus` is at least 2 and, beyond one node, a
/// multiple of gpus_per_node.
[[nodiscard]] std::vector<SumCost> sum_costs(const Cluster& cluster, int gpus, double bytes);

/// Returns the cost of the fastest algorithm and protocol in sum_costs().
[[nodiscard]] SumCost best_sum(const Cluster& cluster, int gpus, double bytes);

/// Returns best_sum() as a cost model, linear between every two neighbouring powers of two from 1 KiB to 16 GiB. A sum
/// never costs less than a sum of fewer bytes.
[[nodiscard]] comm::CostModel sum_model(const Cluster& cluster, int gpus);

}  // namespace lockstep::tools
