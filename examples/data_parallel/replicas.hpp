#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

/// Data parallelism by hand: one process, one model on several devices, every copy and every wait in sight.
///
/// One thread enqueues the work of all devices; each device works it off on its own stream (a GPU's, or a host thread),
/// so that they compute at the same time. Where a device needs what another has made, its stream waits for an event.
namespace data_parallel {

/// A device and all that a training step needs there. The order of the members is that in which they are made.
struct Replica {
  Replica(lockstep::Device device, const lockstep::nn::Model& model, std::int64_t rows, int threads,
          const lockstep::nn::PlanOptions& plan_options);

  std::optional<lockstep::Stream> worker;  ///< of a CPU: a thread of its own, so that work is queued as on a GPU
  std::unique_ptr<lockstep::Context> context;
  lockstep::nn::ParameterSet parameters;
  lockstep::nn::Optimizer optimizer;
  lockstep::nn::Plan plan;
  lockstep::nn::StepState state;
  lockstep::Buffer workspace;
  lockstep::Tensor received;  ///< what came from a neighbour, before it is added
  lockstep::Event done;       ///< with the last thing that another device may have to wait for
};

/// How gradients are summed. star: to device 0 one after the other, and back. ring: every device talks to its
/// neighbours only, and all do so at the same time, with an N-th of the gradient at a time (Patarasuk and Yuan 2009).
enum class Sum : unsigned char { star, ring };

struct Settings {
  std::int64_t batch = 64;  ///< of all devices together
  double learning_rate = 0.01;
  std::uint64_t seed = 1;
  int threads = 1;  ///< of each CPU context
  lockstep::nn::PlanOptions plan{};
};

/// The replicas and the steps of a training step, in the order in which they are called. All of them enqueue;
/// synchronize() waits. UsageError for no device and for fewer samples than devices.
class Replicas {
 public:
  Replicas(const std::vector<lockstep::Device>& devices, const lockstep::nn::Model& model, const Settings& settings);
  ~Replicas();  ///< waits: queued work reads other replicas

  void broadcast_parameters();  ///< those of device 0 to all
  /// Device d gets the d-th share of the batch, at most one sample more than another. The loss of each sample is
  /// divided by the samples of the whole batch: the sum over devices is then the gradient of the whole batch.
  void split_batch(const lockstep::nn::Batch& batch);
  void forward_backward();
  void all_reduce(Sum how);
  void update();  ///< by SGD, on each device: equal gradients make equal parameters, without a copy
  void synchronize();

  [[nodiscard]] std::size_t size() const { return replicas_.size(); }
  [[nodiscard]] Replica& at(std::size_t device) { return *replicas_[device]; }
  /// Bytes that all_reduce() copies from device to device, all together.
  [[nodiscard]] std::size_t copied_bytes() const;

 private:
  void all_reduce_star();
  void all_reduce_ring();
  Settings settings_;
  std::vector<std::unique_ptr<Replica>> replicas_;
};

}  // namespace data_parallel
