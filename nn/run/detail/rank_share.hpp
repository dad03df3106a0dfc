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
/// into micro-batches. With virtual ranks, each virtual rank of this rank gets one micro-batch. The object does not
/// hold the batches themselves.
class RankShare {
 public:
  /// Throws the errors that the constructor of Trainer documents for these arguments.
  RankShare(const Ranks& ranks, const TrainingData& data, const TrainerOptions& options);

  [[nodiscard]] const Sampler& training() const { return training_; }
  [[nodiscard]] const Sampler& test() const { return test_; }
  /// Returns the data set for the training loader. If a device does the last part of preprocessing, this data set does
  /// only the host's part.
  [[nodiscard]] const Dataset& read_set() const { return preprocessing_ != nullptr ? *preprocessing_ : set_; }
  /// Returns the preprocessing that completes the loaded batches on a device, or nullptr if the host does all
  /// preprocessing.
  [[nodiscard]] const DevicePreprocessing* device_preprocessing() const { return preprocessing_.get(); }
  /// Returns the options of a loader that starts at the first batch.
  [[nodiscard]] LoaderOptions loader_options() const;
  /// Returns the bytes of the training loader, of the test loader, and of the preprocessor on the device.
  [[nodiscard]] std::size_t planned_bytes(Device device) const;

  /// Number of micro-batches per step of this rank.
  [[nodiscard]] std::int64_t microbatches() const { return microbatches_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }  ///< number of samples of the largest micro-batch
  /// Returns the range of rows of a batch that form micro-batch `number`.
  [[nodiscard]] Partition rows_of(const Batch& batch, std::int64_t number) const;
  /// Returns micro-batch `number` of a batch, with the valid rows of each field. If there is only one micro-batch, the
  /// result also has the rows after the valid ones, which the plan masks. The result is valid until the next call.
  [[nodiscard]] const Batch& microbatch_of(const Batch& batch, std::int64_t number);

  [[nodiscard]] const Position& position() const { return position_; }
  void go_to(const Position& position);  ///< sets the position; used by Trainer::restore()
  void advance();                        ///< moves the position by one step
  /// These functions implement the functions of the same names in Trainer.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs) const;
  [[nodiscard]] Position continued(const Position& saved, std::int64_t global_batch) const;
  /// Returns the next step's position in the learning rate schedule, counted from 0.
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
