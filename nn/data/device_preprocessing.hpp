#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/runtime/context/context.hpp>

/// Samples whose preparation ends on the device: a loader's threads read the samples, kernels finish the batch.
namespace lockstep::nn {

/// Finishes batches of a DevicePreprocessing. On a GPU the work runs on a stream of its own.
class BatchPreprocessor {
 public:
  BatchPreprocessor() = default;
  virtual ~BatchPreprocessor() = default;  ///< waits for the enqueued work, and for the work of the context
  BatchPreprocessor(const BatchPreprocessor&) = delete;
  BatchPreprocessor& operator=(const BatchPreprocessor&) = delete;

  /// Enqueues the last steps of the preparation of a loader's batch. The returned batch has the fields of the original
  /// data set and the sample ids. Work that is enqueued on the context's stream before the next call may read these
  /// fields. Allocates nothing, but nvJPEG allocates for a batch that needs more memory than all earlier ones. Throws
  /// DataError where a file is damaged.
  [[nodiscard]] virtual const Batch& finish(const Batch& batch) = 0;
  /// Waits until all batches that were passed to finish() may be freed. The caller has waited for the context's stream
  /// before.
  virtual void wait_for_copies() = 0;
};

/// Result of Dataset::device_preprocessing(): the data set that a loader reads, with fields that a BatchPreprocessor
/// turns into those of the original set.
class DevicePreprocessing : public Dataset {
 public:
  using Dataset::Dataset;
  /// Makes a preprocessor for batches of at most `capacity` samples on the context's device. The context and this set
  /// must outlive the preprocessor. Throws UnsupportedError where the device cannot do the work.
  [[nodiscard]] virtual std::unique_ptr<BatchPreprocessor> preprocessor(Context& context,
                                                                        std::int64_t capacity) const = 0;
  /// Bytes that a preprocessor allocates on the device, without the memory of nvJPEG.
  [[nodiscard]] virtual std::size_t preprocessor_bytes(Device device, std::int64_t capacity) const = 0;
};

}  // namespace lockstep::nn
