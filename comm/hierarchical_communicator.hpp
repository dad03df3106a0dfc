#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// A communicator of ranks on several nodes. Its all_reduce() adds within each node first. Then every byte is sent
/// between nodes once for each node instead of once for each rank. The place of a rank is its index among the ranks of
/// its node. P is the number of ranks of the smallest node.
///
///   nodes of equal size, large data   reduce_scatter() within the node; the ranks at place p of their nodes all-reduce
///                                     part p between nodes; all_gather() within the node
///   otherwise                         all_reduce() within the node; each rank at the first P places (the first place
///                                     for small data) all-reduces one part between nodes and broadcasts it in its node
///
/// An element is summed between nodes by the ranks at one place only, so all ranks get the same bits. The bits depend
/// on the orders in which the communicators within and between nodes add. With MPI, the order within a node that shares
/// memory is rank order. Between nodes, MPI's order depends on the size of the data and the number of nodes, not on
/// timing. Operations other than all_reduce() use the communicator of all ranks.
class HierarchicalCommunicator final : public Communicator {
 public:
  /// Splits `whole` by node and by place in the node. Collective. `node_of_rank` has the number of the node of each
  /// rank, and must be equal on all ranks. Throws UsageError unless `node_of_rank` has one number for each rank of
  /// `whole`.
  HierarchicalCommunicator(std::unique_ptr<Communicator> whole, const std::vector<int>& node_of_rank);

  [[nodiscard]] Communicator& within_node() { return *within_; }

  [[nodiscard]] std::string_view backend() const override { return whole_->backend(); }
  [[nodiscard]] bool can_overlap() const override { return whole_->can_overlap(); }
  [[nodiscard]] bool any_thread() const override { return whole_->any_thread(); }
  [[nodiscard]] bool can_be_captured() const override { return whole_->can_be_captured(); }
  void all_reduce(Stream& stream, const TensorView& data) override;
  void reduce_scatter(Stream& s, const TensorView& in, const TensorView& out) override {
    whole_->reduce_scatter(s, in, out);
  }
  void all_gather(Stream& s, const TensorView& in, const TensorView& out) override { whole_->all_gather(s, in, out); }
  void all_to_all(Stream& s, const TensorView& in, const TensorView& out) override { whole_->all_to_all(s, in, out); }
  void broadcast(Stream& s, const TensorView& data, int root) override { whole_->broadcast(s, data, root); }
  void barrier(Stream& s) override { whole_->barrier(s); }
  void send(Stream& s, const TensorView& data, int to) override { whole_->send(s, data, to); }
  void recv(Stream& s, const TensorView& data, int from) override { whole_->recv(s, data, from); }
  /// Splits the communicator of all ranks. The result's all_reduce() is not hierarchical.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override { return whole_->split(color, key); }
  void check() override;
  [[nodiscard]] CommunicatorCounts counts() const override;
  [[nodiscard]] std::unique_ptr<MemoryResource> exchange_memory() override { return whole_->exchange_memory(); }

 private:
  void sum_parts(Stream& stream, const TensorView& data, int places);

  std::unique_ptr<Communicator> whole_;
  std::unique_ptr<Communicator> within_;
  /// Communicator of the ranks that have this rank's place in their nodes; nullptr if a node has fewer ranks.
  std::unique_ptr<Communicator> between_;
  int places_ = 0;           ///< number of ranks of the smallest node
  bool even_ = false;        ///< true if all nodes have equally many ranks
  CommunicatorCounts sums_;  ///< number of calls of all_reduce(), and their bytes
};

}  // namespace lockstep::comm
