#pragma once

#include <sstream>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/hash.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

/// Compares state that must be equal on all ranks. All functions are collective over `control`, which must accept host
/// tensors. The caller must have waited for the device. Otherwise a copy to pageable memory would wait without checking
/// the communicator.
class Replicas {
 public:
  Replicas(Context& context, const ParameterSet& parameters) : context_(context), parameters_(parameters) {}

  /// Implements TrainStep::require_same_state(): throws UsageError on every rank if a state of the parameter set or a
  /// line of `more` differs between the ranks.
  void require_same_state(comm::Communicator& control, const std::string& more) const {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text << more << parameters_.states().text();
    for (const State& state : parameters_.states().all()) {
      if (state.sharing == Sharing::same) {
        text << state.name << " with hash " << hash_of(state.view) << '\n';
      }
    }
    comm::require_same_on_all_ranks(control, text.str());
  }
  /// Implements TrainStep::check_replicas(): throws comm::ReplicaError on every rank if a parameter differs. `step` is
  /// the step's number in the error text.
  void check(comm::Communicator& control, std::int64_t step) const {
    if (differing(parameters_.values(), control).empty()) {
      return;
    }
    const auto infos = parameters_.parameters();
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const std::string ranks = differing(parameters_.value(static_cast<int>(i)), control);
      require<comm::CollectiveError<comm::ReplicaError>>(ranks.empty(), "the replicas differ after step ", step,
                                                         ": parameter '", infos[i].spec.name, "' of rank(s) ", ranks,
                                                         " is not that of rank 0");
    }
    throw comm::CollectiveError<comm::ReplicaError>(
        concat("the replicas differ after step ", step, ": in the padding after a parameter"));
  }

 private:
  /// Returns the hash of an arena's bytes. The device computes the hash, so only 8 bytes are copied to the host.
  [[nodiscard]] std::uint64_t hash_of(const TensorView& arena) const {
    const Tensor result = Tensor::empty(context_, Shape{}, DType::u64);
    std::uint64_t hash = 0;
    const SyncGuard idle(context_.stream());
    ops::hash_range(context_, arena, result);
    copy(context_, result, TensorView(std::span(&hash, 1), Shape{}));
    context_.synchronize();
    return hash;
  }
  /// Returns the ranks whose arena differs from rank 0's arena in any bit, for example "1, 3"; an empty text if there
  /// are none.
  [[nodiscard]] std::string differing(const TensorView& arena, comm::Communicator& control) const {
    const std::vector<std::uint64_t> hashes = comm::all_gather_values<std::uint64_t>(control, {hash_of(arena)});
    std::string ranks;
    for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
      ranks += hashes[rank] == hashes[0] ? "" : concat(ranks.empty() ? "" : ", ", rank);
    }
    return ranks;
  }

  Context& context_;
  const ParameterSet& parameters_;
};

}  // namespace lockstep::nn
