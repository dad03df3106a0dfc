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

/// One rank's share of the data, and the position of the run in the data. The rank's share of each batch is divided
/// into micro-batches; if there are virtual ranks, each of them gets one micro-batch. The object holds no data of
/// batches.
class RankShare {
 public:
  /// Throws the errors that Trainer's constructor documents for these arguments.
  RankShare(const Ranks& ranks, const TrainingData& data, const TrainerOptions& options);

  [[nodiscard]] const Sampler& training() const { return training_; }
  [[nodiscard]] const Sampler& test() const { return test_; }
  /// Returns the data set that a training loader reads: whole samples, or the part of them that the host makes.
  [[nodiscard]] const Dataset& read_set() const { return preprocessing_ != nullptr ? *preprocessing_ : set_; }
  /// Returns the preprocessing by which a device finishes the loaded batches; nullptr if batches are loaded complete.
  [[nodiscard]] const DevicePreprocessing* device_preprocessing() const { return preprocessing_.get(); }
  [[nodiscard]] LoaderOptions loader_options() const;  ///< returns options of a loader that begins with the first batch
  [[nodiscard]] std::size_t planned_bytes(Device device) const;  ///< bytes of both loaders and the preprocessor

  [[nodiscard]] std::int64_t microbatches() const { return microbatches_; }  ///< micro-batches in a step of this rank
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }          ///< samples of the largest micro-batch
  /// Returns the rows of a batch that form its micro-batch `number`.
  [[nodiscard]] Partition rows_of(const Batch& batch, std::int64_t number) const;
  /// Returns micro-batch `number` of a batch, with its valid rows of each field. A single micro-batch also has the
  /// other rows, which the plan masks. The result is valid until the next call.
  [[nodiscard]] const Batch& microbatch_of(const Batch& batch, std::int64_t number);

  [[nodiscard]] const Position& position() const { return position_; }
  void go_to(const Position& position);  ///< sets the position, for Trainer::restore()
  void advance();                        ///< moves the position by one step
  /// These functions implement the functions of Trainer that have the same names.
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
