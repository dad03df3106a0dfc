#include <lockstep/comm/hierarchical_communicator.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace {

/// Largest size in bytes of a tensor that is faster to send between nodes in one message than in several parts.
constexpr std::size_t kSmallBytes = std::size_t{16} << 10;
/// Each part of a tensor begins at a multiple of this number of elements.
constexpr std::int64_t kStep = 64;

std::unique_ptr<Communicator> checked(std::unique_ptr<Communicator> whole, const std::vector<int>& node_of_rank) {
  require<UsageError>(static_cast<int>(node_of_rank.size()) == whole->size(),
                      "hierarchical communicator: node_of_rank has ", node_of_rank.size(),
                      " numbers, expected one for each of the ", whole->size(), " ranks");
  return whole;
}

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(std::unique_ptr<Communicator> whole,
                                                   const std::vector<int>& node_of_rank)
    : Communicator(whole->rank(), whole->size()), whole_(checked(std::move(whole), node_of_rank)) {
  // Nodes are renumbered in the order of their lowest ranks, so the bits of a sum do not depend on the numbers in
  // node_of_rank.
  std::map<int, int> number;
  std::vector<int> ranks_of;
  std::vector<int> place;
  for (const int node : node_of_rank) {
    const auto [entry, is_new] = number.emplace(node, static_cast<int>(number.size()));
    if (is_new) {
      ranks_of.push_back(0);
    }
    place.push_back(ranks_of[static_cast<std::size_t>(entry->second)]++);
  }
  const auto [least, most] = std::minmax_element(ranks_of.begin(), ranks_of.end());
  places_ = *least;
  even_ = *least == *most;
  const auto me = static_cast<std::size_t>(rank());
  within_ = whole_->split(number[node_of_rank[me]], rank());
  // All ranks must call split(), but only the first places_ ranks of each node keep the communicator that it returns.
  std::unique_ptr<Communicator> between = whole_->split(std::min(place[me], places_), rank());
  if (place[me] < places_) {
    between_ = std::move(between);
  }
}

void HierarchicalCommunicator::sum_parts(Stream& stream, const TensorView& data, int places) {
  const std::int64_t n = data.numel();
  const std::int64_t each = ((n + places - 1) / places + kStep - 1) / kStep * kStep;
  const auto part = [&](int place) {
    return data.slice(0, std::min(n, place * each), std::min(n, (place + 1) * each));
  };
  within_->all_reduce(stream, data);
  if (within_->rank() < places) {
    between_->all_reduce(stream, part(within_->rank()));
  }
  for (int place = 0; place < places && within_->size() > 1; ++place) {
    within_->broadcast(stream, part(place), place);
  }
}

void HierarchicalCommunicator::all_reduce(Stream& stream, const TensorView& data) {
  detail::check_on(stream.device(), "all_reduce", stream, data);
  detail::check_summable("all_reduce", data.dtype);
  const std::int64_t n = data.numel();
  const TensorView flat = data.reshape(Shape{n});
  if (data.bytes() <= kSmallBytes) {
    sum_parts(stream, flat, 1);
  } else if (!even_) {
    sum_parts(stream, flat, places_);
  } else {
    const std::int64_t each = n / places_ / kStep * kStep;
    const TensorView main = flat.slice(0, 0, each * places_);
    const TensorView own = flat.slice(0, within_->rank() * each, (within_->rank() + 1) * each);
    within_->reduce_scatter(stream, main, own);
    between_->all_reduce(stream, own);
    within_->all_gather(stream, own, main);
    if (const TensorView rest = flat.slice(0, each * places_, n); rest.numel() > 0) {
      sum_parts(stream, rest, 1);
    }
  }
  ++sums_.calls;
  sums_.bytes += static_cast<std::int64_t>(data.bytes());
}

void HierarchicalCommunicator::check() {
  whole_->check();
  within_->check();
  if (between_ != nullptr) {
    between_->check();
  }
}

CommunicatorCounts HierarchicalCommunicator::counts() const {
  const CommunicatorCounts others = whole_->counts();
  return {.calls = others.calls + sums_.calls, .bytes = others.bytes + sums_.bytes};
}

}  // namespace lockstep::comm
