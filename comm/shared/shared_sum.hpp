#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

struct SharedSumOptions {
  bool each_has_a_core = false;  ///< true: each rank has its own core, so ranks may spin while they wait
  /// Work of a waiting rank. After 100 us of waiting, the rank calls `idle` at least every millisecond. Must not throw.
  std::function<void()> idle{};
};

/// Runs all-reduces, and the other operations that a sum over several nodes needs, among ranks that share memory (a
/// window). The ranks are processes of one node, or threads. The class makes no MPI call, and does not depend on how
/// the window was made.
///
/// Every element is a sum x_0 + x_1 + .. in rank order, and each addition is rounded to the element type. All ranks get
/// the same bits, which depend neither on timing nor on the size of the data.
///
/// The window has a cache line and a staging area for each rank. A rank writes data only into its own area and then
/// counts: it increments the counter of its line. Nothing else synchronises the ranks.
///
/// Data of up to 32 KiB / ranks: each rank copies its data into its area and counts. When all have counted, each rank
/// adds all areas.
///
/// More data is cut into chunks, and each chunk into one part for each rank. An all-reduce of a chunk has three stages:
///   (1) each rank copies the parts of its data that belong to other ranks into its own area
///   (2) each rank adds its own part over all ranks, and puts the sums into its own area
///   (3) each rank copies the sums of the other parts from the other ranks' areas
/// A rank does (1) for chunk c, (2) for chunk c - 1 and (3) for chunk c - 2, then counts. So a rank waits for the other
/// ranks only once in each chunk. Areas fit into the caches, so the data is read from main memory once and written to
/// it once. Data that is larger than the caches is written with stores that bypass the caches.
///
/// A chunk's memory in an area is used again three chunks later, and a sum's memory two chunks later. By then the
/// counters show that all ranks have read the old contents. So an operation needs no synchronisation at its end.
///
/// If each rank of the window has a core, a waiting rank first spins for about a microsecond. Then it yields its core
/// for up to 100 us. Then it sleeps in the kernel until the rank for which it waits wakes it. If a rank dies, the other
/// ranks sleep on: the launcher must end them, as with MPI.
class SharedSum {
 public:
  /// Returns the size in bytes of a window for `ranks` ranks. With 2 ranks, each rank adds about 1 MiB; with more
  /// ranks, each rank adds less. A window for 16 to 256 ranks has 13 MiB in all.
  [[nodiscard]] static std::size_t window_bytes(int ranks);

  /// Makes the object of `rank`. `window` has window_bytes(ranks) bytes, aligned to 64 bytes, which are 0 before the
  /// first rank makes its object. The window must outlive this object. Throws UsageError unless 0 <= rank < ranks.
  SharedSum(void* window, int rank, int ranks, SharedSumOptions options = {});

  /// Replaces the elements of `data` by their sums over the ranks, and returns when this is done. `data` is contiguous,
  /// on the CPU, and of a type that can be summed. If ranks pass different types or sizes, all of them throw PeerError,
  /// and so does every later call on the window. A tensor without elements is neither exchanged nor compared.
  void all_reduce(const TensorView& data);
  /// The following three functions work like those of Communicator, but throw the errors of all_reduce().
  /// reduce_scatter() adds in rank order. all_gather() and broadcast() copy elements of any type through the staging
  /// areas.
  void reduce_scatter(const TensorView& in, const TensorView& out);
  void all_gather(const TensorView& in, const TensorView& out);
  void broadcast(const TensorView& data, int root);

 private:
  struct Line;
  struct Chunks;

  [[nodiscard]] Line& line(int rank) const;
  template <class T>
  [[nodiscard]] T* staged(int rank, std::uint64_t step) const;  ///< memory to which `rank` copies its data of a chunk
  template <class T>
  /// Returns the memory in which `rank` leaves the sums of its part of a chunk for the other ranks.
  [[nodiscard]] T* summed(int rank, std::uint64_t step) const;
  /// Returns true if there are several ranks and elements to exchange. Throws PeerError if the window is broken.
  [[nodiscard]] bool is_shared(const char* operation, std::int64_t elements) const;
  void announce(std::uint64_t what);
  void count();
  void wait_for_all();  ///< waits until every rank has counted as often as this rank
  void check_same(std::uint64_t what);
  template <class T>
  void each_adds_all(T* data, const Chunks& chunks, bool streaming, std::uint64_t what);
  template <class T>
  void each_adds_and_keeps_its_part(const T* in, T* out, std::int64_t n, std::uint64_t what);
  struct Bytes {
    std::int64_t begin, count;
  };
  /// Sends this rank's range of `data` to all ranks and receives the ranges of the other ranks. of(r) is rank r's
  /// range; `longest` is the length of the longest range in bytes.
  template <class Of>
  void each_shows_a_part(std::byte* data, std::int64_t longest, const Of& of, std::uint64_t what);
  template <class T>
  void each_adds_its_part(T* data, const Chunks& chunks, bool streaming, std::uint64_t what);

  std::byte* window_;
  int rank_;
  int ranks_;
  std::size_t chunk_bytes_;
  SharedSumOptions options_;
  bool broken_ = false;     ///< true if the ranks have called different operations
  std::uint64_t step_ = 0;  ///< number of calls of count(); `counted` of this rank's line has the lower 32 bits
};

}  // namespace lockstep::comm
