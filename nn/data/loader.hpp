#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep::nn {

struct LoaderOptions {
  int workers = 1;           ///< threads that read ahead, all in the same batch; 0: next() reads in the calling thread
  int prefetch = 2;          ///< number of batches that workers may be ahead of the caller
  std::int64_t epoch = 0;    ///< epoch of the first batch that next() returns
  std::int64_t batch = 0;    ///< number of the first batch within its epoch, in [0, sampler.batches(skipped))
  std::int64_t skipped = 0;  ///< number of positions left out at the beginning of the first epoch (see Sampler)
};

/// Reads one rank's share of each global batch into host memory, in order, epoch after epoch without end. A batch has
/// the data set's fields and sample_ids (i64, the index in the data set). Every field has Sampler::capacity() rows; the
/// rows from Batch::valid on are zero. The content of a batch depends only on the data set, the sampler and the
/// position in the data, not on the number of workers. The constructor allocates all memory; next() allocates nothing,
/// except in a data set that allocates. Only one thread may use a Loader.
///
/// If SamplerOptions::chunk is set, the sampler's order consists of windows, and the loader announces samples to the
/// data set (Dataset::ahead()). When the loader prepares the first batch of a window, it announces the samples that
/// this rank will read in the next window. The samples are announced in the data set's order, with one call for each
/// run of consecutive samples.
class Loader {
 public:
  /// `dataset` and `memory` must outlive the loader. `memory` is on the host, page-locked (pinned) for copies to a GPU.
  /// Throws UsageError if an option is out of range, or if `sampler` and `dataset` have different numbers of samples.
  Loader(const Dataset& dataset, const Sampler& sampler, MemoryResource& memory, const LoaderOptions& options = {});
  static constexpr int kMaxWorkers = 256;
  static constexpr int kMaxPrefetch = 1024;
  /// Returns the bytes that a loader allocates from its memory resource. Throws UsageError if the number of workers or
  /// of prefetched batches is out of range.
  [[nodiscard]] static std::size_t memory_bytes(const Dataset& dataset, const Sampler& sampler,
                                                const LoaderOptions& options);
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;
  ~Loader();  ///< stops each worker after the sample that the worker is reading

  /// Returns the next batch; waits if the workers have not read the batch yet. The returned batch and the two batches
  /// before it do not change until the next call of next(); older batches are overwritten. So a caller that has waited
  /// for the copy of batch k - 2 to the GPU may take batch k + 1 while the copies of k - 1 and k are still queued. If
  /// Dataset::read_sample_in() throws an exception for a batch, next() throws the exception instead of returning the
  /// batch; every later call throws the same exception.
  const Batch& next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
