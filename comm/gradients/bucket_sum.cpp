#include <lockstep/comm/gradients/bucket_sum.hpp>

#include <algorithm>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

Context& SumPlace::context() {
  if (context_ != nullptr) {
    return *context_;
  }
  require<DeviceError>(gradients.device == stream.device(), "gradient reducer: the arena is on ", gradients.device,
                       ", the communication stream on ", stream.device(), ", expected both on one device");
  if (stream.device() == Device::cpu()) {
    // On a worker's stream, the context has one thread of its own; on an inline stream, it uses the caller's threads.
    context_ =
        std::make_unique<CpuContext>(CpuContextOptions{.threads = stream.is_inline() ? 0 : 1, .stream = &stream});
  } else {
    context_ = std::make_unique<CudaContext>(stream.device(), CudaContextOptions{.stream = stream.cuda_handle()});
  }
  return *context_;
}

TensorView SumPlace::own(int bucket, const TensorView& of) const {
  const Shards& each = shards[static_cast<std::size_t>(bucket)];
  const std::int64_t first = each.first_of(communicator.rank());
  return of.slice(0, first, first + each.part);
}

TensorView SumPlace::parts(int bucket, const TensorView& of) const {
  return of.slice(0, 0, shards[static_cast<std::size_t>(bucket)].rest);
}

TensorView SumPlace::rest(int bucket, const TensorView& of) const {
  const Shards& each = shards[static_cast<std::size_t>(bucket)];
  return of.slice(0, each.rest, each.end);
}

std::int64_t SumPlace::largest() const {
  std::int64_t most = 0;
  for (const Bucket& bucket : buckets) {
    most = std::max(most, bucket.end - bucket.begin);
  }
  return most;
}

std::optional<Misfit> BucketSum::misfit(const SumOptions& options, const SumUse& use) const {
  if (use.divided) {
    return Misfit{SumField::strategy, "all ranks get all gradients"};
  }
  if (use.virtual_ranks) {
    return Misfit{SumField::virtual_ranks, "their sums are of pairs"};
  }
  if (options.order != SumOrder::library) {
    return Misfit{SumField::order};
  }
  if (size_of(options.dtype) == 2) {
    return Misfit{SumField::dtype};
  }
  return std::nullopt;
}

void BucketSum::keep_in(std::span<const TensorView> /*state*/) {}
void BucketSum::initialise(Context& /*context*/) {}
void BucketSum::prepare(SumPlace& /*place*/) {}

}  // namespace lockstep::comm
