#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/data/device_preprocessing.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/data/partition.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn::detail {

/// One rank's share of the data, and the position of the run in the data. The share of each batch is divided into
/// micro-batches, with virtual ranks into one micro-batch per virtual rank. The object holds no batch.
class RankShare {
 public:
  /// Throws the errors of Trainer's constructor.
  RankShare(const Ranks& ranks, const TrainingData& data, const TrainerOptions& options);

  [[nodiscard]] const Sampler& training() const { return training_; }
  [[nodiscard]] const Sampler& test() const { return test_; }
  /// Returns the data set that a loader of the training set reads: whole samples, or the part that no device makes.
  [[nodiscard]] const Dataset& read_set() const { return preprocessing_ != nullptr ? *preprocessing_ : set_; }
  /// Returns how a device finishes the batches; nullptr if no device does.
  [[nodiscard]] const DevicePreprocessing* device_preprocessing() const { return preprocessing_.get(); }
  [[nodiscard]] LoaderOptions loader_options() const;  ///< returns options of a loader that begins with the first batch
  [[nodiscard]] std::size_t planned_bytes(Device device) const;  ///< returns the bytes of both loaders and preprocessor

  [[nodiscard]] std::int64_t microbatches() const { return microbatches_; }  ///< micro-batches of this rank's step
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }          ///< samples of the largest micro-batch
  /// Returns the rows of a batch that form its micro-batch `number`.
  [[nodiscard]] Partition rows_of(const Batch& batch, std::int64_t number) const;
  /// Returns micro-batch `number` of a batch: of each field the rows that count. A single micro-batch also has the rows
  /// after them, which the plan masks. The result is valid until the next call.
  [[nodiscard]] const Batch& microbatch_of(const Batch& batch, std::int64_t number);

  [[nodiscard]] const Position& position() const { return position_; }
  void go_to(const Position& position);  ///< sets the position, for Trainer::restore()
  void advance();                        ///< moves the position by one step
  /// Implement the functions of Trainer with these names.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs) const;
  [[nodiscard]] Position continued(const Position& saved, std::int64_t global_batch) const;
  /// Returns the place of the next step in the schedule, counted from 0.
  [[nodiscard]] std::int64_t scheduled() const;

 private:
  const TrainerOptions& options_;
  const Dataset& set_;
  std::unique_ptr<DevicePreprocessing> preprocessing_;
  Sampler training_;
  Sampler test_;
  std::size_t loader_bytes_;
  std::int64_t microbatches_;
  std::int64_t capacity_;
  Batch microbatch_;
  Position position_;
};

}  // namespace lockstep::nn::detail
