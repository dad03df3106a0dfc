#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/runtime/context/context.hpp>

/// Samples whose preparation ends on the device: a loader's threads read the samples, and kernels do the last steps.
namespace lockstep::nn {

/// Does the last steps of preparation for batches of a DevicePreprocessing. On a GPU, these steps run on a side stream.
class BatchPreprocessor {
 public:
  BatchPreprocessor() = default;
  virtual ~BatchPreprocessor() = default;  ///< waits for all enqueued work of this object and of the context
  BatchPreprocessor(const BatchPreprocessor&) = delete;
  BatchPreprocessor& operator=(const BatchPreprocessor&) = delete;

  /// Enqueues the last steps of the preparation of a loader's batch. The returned batch has the fields of the original
  /// data set and the sample ids. Only work that is enqueued on the context's stream before the next call of finish()
  /// may read these fields. Allocates no memory, with one exception: nvJPEG allocates for a batch that needs more
  /// memory than all earlier batches. Throws DataError if a file is damaged.
  [[nodiscard]] virtual const Batch& finish(const Batch& batch) = 0;
  /// Waits until all batches that were passed to finish() may be freed. Before this call, the caller must have waited
  /// for the context's stream.
  virtual void wait_for_copies() = 0;
};

/// The data set that a loader reads in place of the original set, if a device does the last steps of the preparation.
/// Dataset::device_preprocessing() makes it. A BatchPreprocessor turns the fields of the loader's batches into the
/// fields of the original set.
class DevicePreprocessing : public Dataset {
 public:
  using Dataset::Dataset;
  /// Makes a preprocessor for batches of at most `capacity` samples on the context's device. The context and this set
  /// must outlive the preprocessor. Throws UnsupportedError if the device cannot do the work.
  [[nodiscard]] virtual std::unique_ptr<BatchPreprocessor> preprocessor(Context& context,
                                                                        std::int64_t capacity) const = 0;
  /// Returns the bytes that a preprocessor allocates on the device, without the memory of nvJPEG.
  [[nodiscard]] virtual std::size_t preprocessor_bytes(Device device, std::int64_t capacity) const = 0;
};

}  // namespace lockstep::nn
