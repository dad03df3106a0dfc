#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "measure/measure.hpp"

namespace lockstep::measure {

enum class Collective : unsigned char { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send_recv };

inline constexpr Collective kCollectives[] = {Collective::all_reduce, Collective::reduce_scatter,
                                              Collective::all_gather, Collective::all_to_all,
                                              Collective::broadcast,  Collective::send_recv};

[[nodiscard]] std::string_view name_of(Collective collective);     ///< returns, for example, "all_reduce"
[[nodiscard]] Collective parse_collective(std::string_view text);  ///< throws a UsageError that lists all names
[[nodiscard]] bool is_sum(Collective collective);  ///< true if the ranks' values are added, so that u8 is not allowed

/// Returns the bytes that a rank's link carries for each byte of the collective's size. This is busbw / algbw of
/// nccl-tests (doc/PERFORMANCE.md there): busbw is comparable between collectives, numbers of ranks and hardware. For n
/// ranks, the factor is 2 (n - 1) / n for all_reduce, (n - 1) / n for reduce_scatter, all_gather and all_to_all, and 1
/// for broadcast and send_recv. Returns no factor for one rank, which has no link.
[[nodiscard]] std::optional<double> bus_factor(Collective collective, int ranks);

/// One collective to measure.
struct CollectiveCase {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  /// True if the result overwrites the input. Must be true for all_reduce, broadcast and send_recv, and false for
  /// reduce_scatter and all_to_all. all_gather allows both values.
  bool in_place = true;
  /// For send_recv: `from` and `to` take turns to send, while all other ranks wait. If `from` is -1, all pairs of ranks
  /// 2k and 2k + 1 take turns at the same time.
  int from = -1;
  int to = -1;
  /// True: the operation is captured once in a CUDA graph, and calls launch the graph. Needs a CUDA stream and a
  /// communicator with Communicator::can_be_captured(). send_recv does not allow a graph.
  bool graph = false;
};

/// Returns the cases of these collectives and types that a Communicator supports. Pure.
[[nodiscard]] std::vector<CollectiveCase> collective_cases(const std::vector<Collective>& collectives,
                                                           const std::vector<DType>& dtypes);

/// Returns the number of elements in the larger of a rank's two tensors, for a size in bytes. If this tensor consists
/// of one part per rank, the number is a multiple of `ranks`, and at least `ranks`. Pure.
[[nodiscard]] std::int64_t collective_elements(const CollectiveCase& item, std::int64_t bytes, int ranks);

/// Returns a name such as "all_reduce/mpi/f32/in_place/blocking/1048576". Instead of "blocking", the name has "stream"
/// for a stream that is not inline, "graph" for a captured operation. The name ends with the bytes of
/// collective_elements().
[[nodiscard]] std::string collective_name(const comm::Communicator& communicator, const Stream& stream,
                                          const CollectiveCase& item, std::int64_t bytes);

/// Measures and checks collectives of one communicator. algbw = bytes / time, with the bytes of the larger of a rank's
/// two tensors, as in nccl-tests.
///
/// Each timed call uses the next part of a pool that is larger than a cache, so that no call finds its data in a cache.
/// A captured graph always uses the same part. The pool holds zeros, because sums of zeros cannot overflow.
///
/// Only one thread may use the bench, and all ranks must make the same calls. The bench owns the tensors, but not the
/// stream and the communicator. It must be destroyed before the communicator. Throws UsageError for a graph of
/// send_recv or of a communicator that cannot be captured.
class CollectiveBench {
 public:
  /// `context` provides the device and the memory of the tensors; `stream` takes the operations, on the device of
  /// `context`. `context` and `stream` must outlive the bench.
  CollectiveBench(comm::Communicator& communicator, Context& context, Stream& stream, std::int64_t max_bytes,
                  std::int64_t pool_bytes = kPoolBytes);
  ~CollectiveBench();
  CollectiveBench(const CollectiveBench&) = delete;
  CollectiveBench& operator=(const CollectiveBench&) = delete;

  /// Times the case; the result's name is collective_name(). `ranks` has the same ranks as the communicator; only the
  /// barriers and the exchange of times use it. In the result, payload_bytes is the size of the larger tensor.
  /// traffic_bytes is payload_bytes * bus_factor(), the bytes that a rank's link carries, or 0 for one rank.
  [[nodiscard]] Measurement measure(comm::Communicator& ranks, const CollectiveCase& item, std::int64_t bytes,
                                    const MeasureOptions& options);
  [[nodiscard]] Work work(const CollectiveCase& item, std::int64_t bytes);
  /// Runs the case once on small whole numbers, whose sums every type holds exactly, and compares every element, in
  /// host or GPU memory. Throws StateError on the ranks that find a wrong element.
  void check(const CollectiveCase& item, std::int64_t bytes);
  /// Returns the seconds that NCCL expects one call to take; empty if NCCL has no estimate. `estimator` has the same
  /// ranks as the communicator.
  [[nodiscard]] std::optional<double> estimate(comm::NcclEstimator& estimator, const CollectiveCase& item,
                                               std::int64_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::measure
