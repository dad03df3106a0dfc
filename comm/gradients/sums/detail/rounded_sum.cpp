#include <lockstep/comm/gradients/sums/detail/rounded_sum.hpp>

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

void RoundedSum::prepare(SumPlace& place) {
  const DType arena = place.gradients.dtype;
  const DType travels = sent_as(arena);
  if (travels != arena) {
    require<DTypeError>(arena == DType::f32 && size_of(travels) == 2, "gradient sums: gradients are ", arena,
                        ", sent as ", travels, "; expected f32 sent as bf16 or f16, or sent as they are");
    rounded_ = Tensor::empty(place.context(), Shape{place.largest()}, travels);
  }
  sent_bytes_.clear();
  for (const Bucket& bucket : place.buckets) {
    sent_bytes_.push_back((bucket.end - bucket.begin) * static_cast<std::int64_t>(size_of(travels)));
  }
}

void RoundedSum::reduce(SumPlace& place, int bucket, const TensorView& gradients) {
  if (!rounds()) {
    sum(place, bucket, gradients, gradients);
    return;
  }
  const TensorView sent = rounded_.view().slice(0, 0, gradients.numel());
  ops::strided_copy(place.context(), gradients, sent);
  sum(place, bucket, gradients, sent);
  if (place.divided) {
    copy_own(place, bucket, sent, gradients);
  } else {
    ops::strided_copy(place.context(), sent, gradients);
  }
}

void RoundedSum::copy_own(SumPlace& place, int bucket, const TensorView& from, const TensorView& to) {
  if (const TensorView own = place.own(bucket, from); own.numel() > 0) {
    ops::strided_copy(place.context(), own, place.own(bucket, to));
  }
  if (const TensorView rest = place.rest(bucket, from); rest.numel() > 0) {
    ops::strided_copy(place.context(), rest, place.rest(bucket, to));
  }
}

}  // namespace lockstep::comm
