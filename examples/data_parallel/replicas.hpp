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

/// Data parallelism by hand: one process trains a model on several devices, with explicit copies and waits.
///
/// One thread enqueues the work of all devices. Each device runs its work on its own stream (of a GPU, or a host
/// thread), so all compute at the same time. A stream that needs results of another device waits for an event of that
/// device.
namespace data_parallel {

/// One device with its own context, parameters, optimizer, plan and memory for a training step.
struct Replica {
  Replica(lockstep::Device device, const lockstep::nn::Model& model, std::int64_t rows, int threads,
          const lockstep::nn::PlanOptions& plan_options);

  std::optional<lockstep::Stream> worker;  ///< thread of a CPU device, so that work is queued as on a GPU
  std::unique_ptr<lockstep::Context> context;
  lockstep::nn::ParameterSet parameters;
  lockstep::nn::Optimizer optimizer;
  lockstep::nn::Plan plan;
  lockstep::nn::StepState state;
  lockstep::Buffer workspace;
  lockstep::Tensor received;  ///< gradients from another device, to be added to this device's gradients
  lockstep::Event done;       ///< recorded after the last work that another device may have to wait for
};

/// Ways to sum the gradients of N devices. `star`: device 0 adds all gradients, one after the other; the other devices
/// copy the sum. `ring`: in each step, every device copies an N-th of the gradient from its left neighbour, all devices
/// at the same time (Patarasuk and Yuan 2009).
enum class Sum : unsigned char { star, ring };

struct Settings {
  std::int64_t batch = 64;  ///< samples in a batch, for all devices together
  double learning_rate = 0.01;
  std::uint64_t seed = 1;
  int threads = 1;  ///< threads of each CPU context
  lockstep::nn::PlanOptions plan{};
};

/// One replica of the model for each device. A step calls split_batch(), forward_backward(), all_reduce() and update(),
/// which enqueue work; synchronize() waits. Throws UsageError for no device, or for fewer samples than devices.
class Replicas {
 public:
  Replicas(const std::vector<lockstep::Device>& devices, const lockstep::nn::Model& model, const Settings& settings);
  ~Replicas();  ///< waits for queued work, which may read other replicas

  void broadcast_parameters();  ///< copies the parameters of device 0 to all devices
  /// Copies the d-th share of `batch` to device d. The sizes of shares differ by at most one sample. The loss of each
  /// sample is divided by the number of samples in the whole batch. The gradients of all devices therefore sum to the
  /// gradient of the whole batch.
  void split_batch(const lockstep::nn::Batch& batch);
  void forward_backward();
  void all_reduce(Sum how);
  void update();  ///< updates the parameters on each device by SGD; equal gradients give equal parameters, so nothing
                  ///< is copied
  void synchronize();

  [[nodiscard]] std::size_t size() const { return replicas_.size(); }
  [[nodiscard]] Replica& at(std::size_t device) { return *replicas_[device]; }
  /// Returns the bytes that all copies of one all_reduce() move between devices.
  [[nodiscard]] std::size_t copied_bytes() const {
    return 2 * (replicas_.size() - 1) * replicas_.front()->parameters.gradients().bytes();
  }

 private:
  void all_reduce_star();
  void all_reduce_ring();
  Settings settings_;
  std::vector<std::unique_ptr<Replica>> replicas_;
};

}  // namespace data_parallel
