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
  int workers = 1;           ///< threads that read ahead, each a part of a batch; 0: next() reads in the calling thread
  int prefetch = 2;          ///< batches that workers may be ahead of the caller
  std::int64_t epoch = 0;    ///< where to start: epoch of the first batch that next() returns
  std::int64_t batch = 0;    ///< in [0, sampler.batches(skipped))
  std::int64_t skipped = 0;  ///< positions of the first epoch's order that are left out (Sampler)
};

/// Reads batches in order, epoch after epoch without end: one rank's share of each global batch, in host memory. A
/// batch has the data set's fields and sample_ids (i64, the index in the data set), each (capacity, ...); rows from
/// `valid` on are zero. Its content depends only on the data set, the sampler and the position, never on the number of
/// workers. The constructor allocates all memory; next() allocates nothing,
/// unless the data set does. Used by one thread.
///
/// With a sampler's `chunk` the data set is told what comes (Dataset::ahead()): with the first batch of a window of the
/// order, those samples of the next window that this rank reads, in the order of the data set, neighbours as one.
class Loader {
 public:
  /// `dataset` and `memory` must outlive the loader; memory is on the host (pinned, for copies to a GPU). UsageError
  /// for options out of range, or a sampler for another number of samples.
  Loader(const Dataset& dataset, const Sampler& sampler, MemoryResource& memory, const LoaderOptions& options = {});
  static constexpr int kMaxWorkers = 256;
  static constexpr int kMaxPrefetch = 1024;
  /// The bytes that a loader allocates from its memory resource. UsageError for numbers of workers or batches out of
  /// range.
  [[nodiscard]] static std::size_t memory_bytes(const Dataset& dataset, const Sampler& sampler,
                                                const LoaderOptions& options);
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;
  ~Loader();  ///< stops the workers after the sample that they are reading

  /// The next batch; waits when the workers are behind. This batch and the two before it do not change until the next
  /// call; older ones are overwritten. So a caller that has waited for the copy of batch k - 2 may take batch k + 1
  /// while the copies of k - 1 and k are still queued. An exception of Dataset::read_sample_in is thrown here in place
  /// of its batch, and again by every later call.
  const Batch& next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
