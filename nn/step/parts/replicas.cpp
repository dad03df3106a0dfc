#include <lockstep/nn/step/parts/replicas.hpp>

#include <locale>
#include <span>
#include <sstream>
#include <vector>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/hash.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {

namespace {

/// Hash of the bytes of an arena, computed on its device: one number comes to the host.
std::uint64_t hash_of(Context& context, const TensorView& arena) {
  const Tensor result = Tensor::empty(context, Shape{}, DType::u64);
  std::uint64_t hash = 0;
  const SyncGuard idle(context.stream());
  ops::hash_range(context, arena, result);
  copy(context, result, TensorView(std::span(&hash, 1), Shape{}));
  context.synchronize();
  return hash;
}

/// The ranks whose bits of an arena are not those of rank 0: "1, 3".
std::string differing(Context& context, const TensorView& arena, comm::Communicator& control) {
  std::uint64_t hash = hash_of(context, arena);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(control.size()));
  Stream stream = Stream::host_inline();
  control.all_gather(stream, TensorView(std::span(&hash, 1), {1}), TensorView(std::span(hashes), {control.size()}));
  std::string ranks;
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    ranks += hashes[rank] == hashes[0] ? "" : concat(ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

}  // namespace

void require_same_state(Context& context, const ParameterSet& parameters, comm::Communicator& control,
                        const std::string& more) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << more << parameters.states().text();
  for (const State& state : parameters.states().all()) {
    if (state.sharing == Sharing::same) {
      text << state.name << " with hash " << hash_of(context, state.view) << '\n';
    }
  }
  comm::require_same_on_all_ranks(control, text.str());
}

void check_replicas(Context& context, const ParameterSet& parameters, comm::Communicator& control, std::int64_t step) {
  if (differing(context, parameters.values(), control).empty()) {
    return;
  }
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const std::string ranks = differing(context, parameters.value(static_cast<int>(i)), control);
    require<comm::CollectiveError<comm::ReplicaError>>(ranks.empty(), "the replicas differ after step ", step,
                                                       ": parameter '", parameters.parameters()[i].spec.name,
                                                       "' of rank(s) ", ranks, " is not that of rank 0");
  }
  throw comm::CollectiveError<comm::ReplicaError>(
      concat("the replicas differ after step ", step, ": in the padding behind a parameter"));
}

}  // namespace lockstep::nn
