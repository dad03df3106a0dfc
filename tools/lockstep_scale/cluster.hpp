#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::tools {

/// Which generation's constants of NCCL hold.
enum class GpuGeneration : unsigned char { ampere, hopper };

/// Equal nodes of GPUs. Bandwidths are bus bandwidths of a whole node in bytes a second, as nccl-tests prints them.
struct Cluster {
  std::string name;
  GpuGeneration generation = GpuGeneration::hopper;
  int gpus_per_node = 8;
  int channels = 16;             ///< of NCCL's rings and trees
  double nvlink_bus = 0;         ///< of rings within a node
  double nvls_bus = 0;           ///< where the switch adds (NVLink SHARP); 0: it does not
  double network_bus = 0;        ///< between nodes: all network cards of a node together
  double network_latency_s = 0;  ///< beyond NCCL's own constants, of one hop
};

/// "a100" (8 GPUs, 8 x 200 Gbit/s a node) and "h100" (8 GPUs, 8 x 400 Gbit/s). UsageError naming those there are.
[[nodiscard]] Cluster known_cluster(const std::string& name);

/// How gradients are summed.
enum class SumAlgorithm : unsigned char {
  ring,
  tree,
  nvls,          ///< one node
  nvls_tree,     ///< the switches of the nodes, a tree between them
  hierarchical,  ///< reduce-scatter in the node, a ring of shards between nodes, all-gather in the node
};
[[nodiscard]] const char* name_of(SumAlgorithm algorithm);

/// One way to sum.
struct SumCost {
  SumAlgorithm algorithm = SumAlgorithm::ring;
  std::string_view protocol;  ///< "LL", "LL128", "Simple"
  double seconds = 0;
};

/// Seconds of an all-reduce of `bytes` over `gpus` GPUs by every algorithm and protocol that there is for them: the
/// model by which NCCL chooses (2.28 to 2.30, src/graph/tuning.cc: base latency, latency a hop, bandwidth a protocol,
/// correction of trees by size), with its published constants. The hierarchical sum is made of NCCL's ring in the node
/// and its ring between nodes. `gpus` is 2 or more; more than a node: a multiple of gpus_per_node (UsageError).
[[nodiscard]] std::vector<SumCost> sum_costs(const Cluster& cluster, int gpus, double bytes);

/// The fastest of sum_costs().
[[nodiscard]] SumCost best_sum(const Cluster& cluster, int gpus, double bytes);

/// best_sum() as a cost model with a piece between every two powers of two, 1 KiB to 16 GiB. A sum never costs less
/// than a smaller one.
[[nodiscard]] comm::CostModel sum_model(const Cluster& cluster, int gpus);

}  // namespace lockstep::tools
