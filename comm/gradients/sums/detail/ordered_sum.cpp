#include <lockstep/comm/gradients/sums/detail/ordered_sum.hpp>

#include <algorithm>

namespace lockstep::comm {

void OrderedSum::prepare(SumPlace& place) {
  RoundedSum::prepare(place);
  std::int64_t most = 0;
  for (const Shards& each : place.shards) {
    most = std::max({most, place.communicator.size() * each.part, place.communicator.size() * (each.end - each.rest)});
  }
  received_ = Tensor::empty(place.context(), Shape{most}, sent_as(place.gradients.dtype));
}

void OrderedSum::release() noexcept {
  RoundedSum::release();
  received_ = Tensor();
}

std::size_t OrderedSum::bytes() const {
  return RoundedSum::bytes() + (received_.view().given() ? received_.view().bytes() : 0);
}

void OrderedSum::add_received(SumPlace& place, const TensorView& sums) {
  const std::int64_t ranks = place.communicator.size();
  add(place, received_.view().slice(0, 0, ranks * sums.numel()).reshape({ranks, sums.numel()}), sums);
}

void OrderedSum::sum(SumPlace& place, int bucket, const TensorView& gradients, const TensorView& sent) {
  const Shards& shards = place.shards[static_cast<std::size_t>(bucket)];
  // The sums go into the arena, whose type is wider, and are rounded once.
  if (shards.part > 0) {
    place.communicator.all_to_all(place.stream, place.parts(bucket, sent), received_.view().slice(0, 0, shards.rest));
    add_received(place, place.own(bucket, gradients));
  }
  if (const TensorView tail = place.rest(bucket, sent); tail.numel() > 0) {
    place.communicator.all_gather(place.stream, tail,
                                  received_.view().slice(0, 0, place.communicator.size() * tail.numel()));
    add_received(place, place.rest(bucket, gradients));
  }
  if (rounds()) {
    copy_own(place, bucket, gradients, sent);
  }
  if (!place.divided && shards.part > 0) {
    place.communicator.all_gather(place.stream, place.own(bucket, sent), place.parts(bucket, sent));
  }
}

}  // namespace lockstep::comm
