#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// A communicator of ranks on several nodes whose all_reduce() adds within each node first, so that every byte passes
/// between nodes once for a node and not once for a rank. The node of least ranks has P of them:
///
///   nodes of equal size, large data   reduce_scatter() within the node; all_reduce() of rank p's part by the ranks at
///                                     place p of their nodes; all_gather() within the node
///   else                              all_reduce() within the node; the ranks at the first P places (for small data
///                                     the first alone) all-reduce a part each between nodes, and broadcast() it
///
/// An element is summed between nodes by the ranks of one place only, so all ranks get the same bits. They are those
/// of the parts' order of sums: with MPI rank order within a node that shares memory, and between nodes MPI's, which
/// depends on the size and the number of nodes and not on timing. All other operations are the whole's.
class HierarchicalCommunicator final : public Communicator {
 public:
  /// Collective over `whole`, which it splits in two ways. node_of_rank: the same on all ranks, any numbers. UsageError
  /// unless it has one for each rank.
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
  /// Of the whole: its all_reduce() is flat.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override { return whole_->split(color, key); }
  void check() override;
  [[nodiscard]] CommunicatorCounts counts() const override;
  [[nodiscard]] std::unique_ptr<MemoryResource> exchange_memory() override { return whole_->exchange_memory(); }

 private:
  void sum_parts(Stream& stream, const TensorView& data, int places);

  std::unique_ptr<Communicator> whole_;
  std::unique_ptr<Communicator> within_;
  std::unique_ptr<Communicator> between_;  ///< the ranks at this rank's place; nullptr: not every node has it
  int places_ = 0;                         ///< that every node has
  bool even_ = false;                      ///< no node has another place
  CommunicatorCounts sums_;                ///< of all_reduce()
};

}  // namespace lockstep::comm
