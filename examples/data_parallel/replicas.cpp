#include "replicas.hpp"

#include <lockstep/kernels/add.hpp>
#include <lockstep/nn/data/partition.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace data_parallel {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

namespace {

std::unique_ptr<Context> context_on(Device device, int threads, std::optional<Stream>& worker) {
  if (device != Device::cpu()) {
    return make_context(device);
  }
  worker.emplace(Stream::host_worker("device"));
  return std::make_unique<CpuContext>(CpuContextOptions{.threads = threads, .stream = &*worker});
}

}  // namespace

Replica::Replica(Device device, const nn::Model& model, std::int64_t rows, int threads,
                 const nn::PlanOptions& plan_options)
    : context(context_on(device, threads, worker)),
      parameters(*context, model, plan_options.dtype),
      optimizer(*context, parameters, {.kind = nn::OptimizerKind::sgd, .momentum = 0.9}),
      plan(*context, model, nn::Mode::train, rows, plan_options),
      state(*context, rows, nn::step_layout(model, plan_options)),
      workspace(plan.workspace_bytes(), *context),
      received(Tensor::empty(*context, parameters.gradients().shape, parameters.dtype())),
      done(device) {
  plan.bind(parameters, state, workspace);
}

Replicas::Replicas(const std::vector<Device>& devices, const nn::Model& model, const Settings& settings)
    : settings_(settings) {
  const auto count = static_cast<std::int64_t>(devices.size());
  require<UsageError>(count >= 1, "no device is given, expected at least 1");
  require<UsageError>(settings.batch >= count, "the batch size is ", settings.batch,
                      ", expected at least one sample for each of the ", count, " devices");
  const std::int64_t rows = nn::partition_of(settings.batch, count, 0).count;  // number of samples in the largest share
  for (const Device device : devices) {
    replicas_.push_back(std::make_unique<Replica>(device, model, rows, settings.threads, settings.plan));
  }
  at(0).parameters.initialise(*at(0).context, settings.seed);
  broadcast_parameters();
  synchronize();
}

Replicas::~Replicas() {
  for (const auto& replica : replicas_) {
    try {
      replica->context->synchronize();
    } catch (...) {  // an earlier call has reported the failure
    }
  }
}

void Replicas::broadcast_parameters() {
  Replica& root = at(0);
  root.context->stream().record(root.done);
  for (std::size_t d = 1; d < size(); ++d) {
    Replica& replica = at(d);
    replica.context->stream().wait(root.done);  // waits until the parameters of device 0 are complete
    copy(*replica.context, root.parameters.values(), replica.parameters.values());
    replica.parameters.round_weights(*replica.context);
    replica.context->stream().record(replica.done);
    root.context->stream().wait(replica.done);  // waits until the replica has copied the parameters
  }
}

void Replicas::split_batch(const nn::Batch& batch) {
  const auto count = static_cast<std::int64_t>(size());
  for (std::int64_t d = 0; d < count; ++d) {
    Replica& replica = at(static_cast<std::size_t>(d));
    const nn::Partition share = nn::partition_of(batch.valid, count, d);
    const auto send = [&](nn::StateField field) {
      const TensorView& all = batch.view(field);
      copy(*replica.context, all.slice(0, share.begin, share.begin + share.count),
           replica.state.view(field).slice(0, 0, share.count));
    };
    send(nn::StateField::images);
    send(nn::StateField::labels);
    send(nn::StateField::sample_ids);
    replica.state.set(*replica.context, {.learning_rate = settings_.learning_rate,
                                         .sample_weight = 1.0 / static_cast<double>(batch.valid),
                                         .valid = share.count,
                                         .epoch = batch.epoch});
  }
}

void Replicas::forward_backward() {
  for (const auto& replica : replicas_) {
    replica->plan.run(*replica->context);
  }
}

void Replicas::all_reduce(Sum how) {
  if (how == Sum::star) {
    all_reduce_star();
  } else {
    all_reduce_ring();
  }
}

// A star is simple, but slow for many devices: with N devices, all 2 (N - 1) copies go through device 0, which receives
// the gradients one after the other.
void Replicas::all_reduce_star() {
  Replica& root = at(0);
  const TensorView& sum = root.parameters.gradients();
  for (std::size_t d = 1; d < size(); ++d) {
    Replica& replica = at(d);
    replica.context->stream().record(replica.done);
    root.context->stream().wait(replica.done);  // waits until the replica's gradient is complete
    copy(*root.context, replica.parameters.gradients(), root.received);
    ops::add(*root.context, sum, root.received, sum);
  }
  root.context->stream().record(root.done);
  for (std::size_t d = 1; d < size(); ++d) {
    Replica& replica = at(d);
    // Waits until device 0 has read this replica's gradient and has completed the sum.
    replica.context->stream().wait(root.done);
    copy(*replica.context, sum, replica.parameters.gradients());
    replica.context->stream().record(replica.done);
  }
  for (std::size_t d = 1; d < size(); ++d) {
    root.context->stream().wait(at(d).done);  // waits until the sum is copied, because the next backward overwrites it
  }
}

// The gradient has N parts for N devices. In each of the first N - 1 steps, each device adds its left neighbour's
// values of one part to its own values of that part. Then device d has the complete sum of part d + 1. In the next N -
// 1 steps, each device copies a complete sum from its left neighbour. Each link carries 2 (N - 1) / N of the gradient.
// A part is summed on one device and then copied, so all devices end with the same bits.
void Replicas::all_reduce_ring() {
  const std::size_t count = size();
  const auto part = [&](const TensorView& all, std::size_t index) {
    const nn::Partition share =
        nn::partition_of(all.numel(), static_cast<std::int64_t>(count), static_cast<std::int64_t>(index % count));
    return all.slice(0, share.begin, share.begin + share.count);
  };
  // Before a step, each device waits for the previous step of both neighbours. Then the left neighbour has made the
  // part that this device reads next, and the right neighbour has read the part that this device writes next.
  const auto meet = [&] {
    for (const auto& replica : replicas_) {
      replica->context->stream().record(replica->done);
    }
    for (std::size_t d = 0; d < count; ++d) {
      at(d).context->stream().wait(at((d + count - 1) % count).done);
      at(d).context->stream().wait(at((d + 1) % count).done);
    }
  };
  for (std::size_t step = 0; step + 1 < count; ++step) {
    meet();
    for (std::size_t d = 0; d < count; ++d) {
      const TensorView left = part(at((d + count - 1) % count).parameters.gradients(), d + 2 * count - step - 1);
      const TensorView own = part(at(d).parameters.gradients(), d + 2 * count - step - 1);
      const TensorView received = part(at(d).received, d + 2 * count - step - 1);
      copy(*at(d).context, left, received);
      ops::add(*at(d).context, own, received, own);
    }
  }
  for (std::size_t step = 0; step + 1 < count; ++step) {
    meet();
    for (std::size_t d = 0; d < count; ++d) {
      copy(*at(d).context, part(at((d + count - 1) % count).parameters.gradients(), d + count - step),
           part(at(d).parameters.gradients(), d + count - step));
    }
  }
  meet();  // waits until the neighbours have read the gradients, which the next backward overwrites
}

void Replicas::update() {
  for (const auto& replica : replicas_) {
    replica->optimizer.update(*replica->context, replica->state.view(nn::StateField::learning_rate));
  }
}

void Replicas::synchronize() {
  for (const auto& replica : replicas_) {
    replica->context->synchronize();
  }
}

}  // namespace data_parallel
