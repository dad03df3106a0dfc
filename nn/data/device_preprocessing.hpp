#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/runtime/context/context.hpp>

/// Samples whose last part is done on the device: a loader's threads read them, kernels finish the batch.
namespace lockstep::nn {

/// Finishes batches, on a stream of its own on a GPU.
class BatchPreprocessor {
 public:
  BatchPreprocessor() = default;
  virtual ~BatchPreprocessor() = default;  ///< waits for the work that it has enqueued, and for that of the context
  BatchPreprocessor(const BatchPreprocessor&) = delete;
  BatchPreprocessor& operator=(const BatchPreprocessor&) = delete;

  /// Enqueues what is left of a loader's batch. The batch that is returned has the fields of the data set and the ids;
  /// work that is enqueued on the context's stream before the next call may read them. Allocates nothing; nvJPEG does,
  /// for a batch that needs more than those before it. DataError where a file is damaged.
  [[nodiscard]] virtual const Batch& finish(const Batch& batch) = 0;
  /// Waits until batches that were given may be freed. The context's stream has been waited for before.
  virtual void wait_for_copies() = 0;
};

/// What Dataset::device_preprocessing() returns. Its fields are those that a loader reads.
class DevicePreprocessing : public Dataset {
 public:
  using Dataset::Dataset;
  /// For batches of at most `capacity` samples, on the context's device. The context and this must outlive it.
  /// UnsupportedError where the device cannot do it.
  [[nodiscard]] virtual std::unique_ptr<BatchPreprocessor> preprocessor(Context& context,
                                                                        std::int64_t capacity) const = 0;
  /// The bytes that a preprocessor allocates on the device, without what nvJPEG takes.
  [[nodiscard]] virtual std::size_t preprocessor_bytes(Device device, std::int64_t capacity) const = 0;
};

}  // namespace lockstep::nn
