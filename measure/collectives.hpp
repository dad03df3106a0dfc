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
#include <lockstep/runtime/stream/context.hpp>

#include "measure/measure.hpp"

namespace lockstep::measure {

enum class Collective : unsigned char { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send_recv };

inline constexpr Collective kCollectives[] = {Collective::all_reduce, Collective::reduce_scatter,
                                              Collective::all_gather, Collective::all_to_all,
                                              Collective::broadcast,  Collective::send_recv};

[[nodiscard]] std::string_view name_of(Collective collective);     ///< "all_reduce"
[[nodiscard]] Collective parse_collective(std::string_view text);  ///< UsageError listing the names
[[nodiscard]] bool is_sum(Collective collective);                  ///< takes the types that can be added

/// busbw / algbw: what a link of a rank carries for one byte of the size, so that collectives and numbers of ranks may
/// be compared with each other and with hardware (nccl-tests, doc/PERFORMANCE.md): 2 (n - 1) / n for all_reduce, (n -
/// 1) / n for reduce_scatter, all_gather and all_to_all, 1 for broadcast and send_recv. Empty for one rank, which has
/// no link.
[[nodiscard]] std::optional<double> bus_factor(Collective collective, int ranks);

/// What one collective is done with.
struct CollectiveCase {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  /// all_reduce and broadcast have nothing else; all_gather may be both, the others are out of place only.
  bool in_place = true;
  /// send_recv: the two ranks, which take turns; the others look on. -1: rank 2k with rank 2k + 1, all pairs at once.
  int from = -1;
  int to = -1;
  /// Captured once in a CUDA graph, which is launched instead: on a CUDA stream, of a communicator that can be captured
  /// (Communicator::can_be_captured()). Not send_recv.
  bool graph = false;
};

/// The cases that the interface of Communicator has, of these collectives and types. Pure.
[[nodiscard]] std::vector<CollectiveCase> collective_cases(const std::vector<Collective>& collectives,
                                                           const std::vector<DType>& dtypes);

/// Elements of the larger of a rank's two tensors for a size in bytes: at least one for each rank where each gets a
/// part, and a multiple of the ranks there. Pure.
[[nodiscard]] std::int64_t collective_elements(const CollectiveCase& item, std::int64_t bytes, int ranks);

/// "all_reduce/mpi/f32/in_place/blocking/1048576" ("stream" instead of blocking where the stream is not inline,
/// "graph" for a captured one). The size is that of collective_elements().
[[nodiscard]] std::string collective_name(const comm::Communicator& communicator, const Stream& stream,
                                          const CollectiveCase& item, std::int64_t bytes);

/// Memory and a stream for collectives of one communicator. algbw = bytes / time, where bytes are those of the larger
/// of a rank's two tensors, as in nccl-tests. Used by one thread; all ranks make the same calls. Timed calls go through
/// a pool of buffers larger than a cache, on zeros, which stay zeros; a graph has one place in it. UsageError for a
/// graph of send_recv or of a communicator that cannot be captured. Destroyed before the communicator.
class CollectiveBench {
 public:
  /// context: whose memory and device the tensors are on. stream: that operations are enqueued on, of the same device;
  /// both outlive the bench.
  CollectiveBench(comm::Communicator& communicator, Context& context, Stream& stream, std::int64_t max_bytes,
                  std::int64_t pool_bytes = kPoolBytes);
  ~CollectiveBench();
  CollectiveBench(const CollectiveBench&) = delete;
  CollectiveBench& operator=(const CollectiveBench&) = delete;

  /// ranks: a communicator of the same ranks for everything but the operation itself. Named collective_name(). payload:
  /// the bytes; traffic: what a rank's link carries, payload * bus_factor(), 0 for one rank.
  [[nodiscard]] Measurement measure(comm::Communicator& ranks, const CollectiveCase& item, std::int64_t bytes,
                                    const MeasureOptions& options);
  [[nodiscard]] Work work(const CollectiveCase& item, std::int64_t bytes);
  /// Runs it once on small whole numbers, whose sums every type holds exactly, and compares every element. StateError
  /// on the ranks that find a wrong one. Host and GPU memory.
  void check(const CollectiveCase& item, std::int64_t bytes);
  /// What NCCL itself expects one call to take, in seconds; empty where it does not say. estimator: of the same ranks.
  [[nodiscard]] std::optional<double> estimate(comm::NcclEstimator& estimator, const CollectiveCase& item,
                                               std::int64_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::measure
