#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

struct SharedSumOptions {
  bool each_has_a_core = false;  ///< true: each rank has a core, so a rank that spins takes no other rank's core
  /// Work to do while a rank waits. After 100 us of waiting, it is called at least every millisecond. Must not throw.
  std::function<void()> idle{};
};

/// All-reduces, and the further operations that a sum over several nodes needs, for ranks that see the same memory (a
/// window). The ranks are processes of one node, or threads. Makes no MPI call, and does not depend on how the window
/// was made.
///
/// Every element is x_0 + x_1 + .. in rank order, and each sum is rounded to the element type. All ranks get the same
/// bits. The bits depend neither on timing nor on which of the two ways below is taken.
///
/// The window has a line and a staging area for each rank. A rank writes only into its own line and area, then
/// increments the counter of its line; nothing else synchronises the ranks. The size of the data selects the way:
///   up to 32 KiB / ranks          each rank puts its data into its area and counts; when all have counted, each adds
///                                 all areas
///   more                          in chunks: (1) each rank puts the parts of the others into its area; (2) each adds
///                                 its own part and puts the sum there; (3) each takes the others' sums. A rank does
///                                 (1) for chunk c, (2) for chunk c - 1 and (3) for chunk c - 2, then counts: it waits
///                                 once a chunk. Areas fit into the caches, so that memory sees the data twice: read
///                                 and written. Data that is larger than the caches is written past them.
/// A chunk's area is used again three chunks later, a sum's area two chunks later. By then the counters prove that no
/// rank reads there any more. So an operation needs no step at its end: a rank's first count of the next operation says
/// that it has read the results of this operation.
///
/// If each rank of the window has a core, a waiting rank first spins for about a microsecond. Then it yields its core
/// for up to 100 us. Then it sleeps in the kernel until the rank for which it waits wakes it. If a rank dies, the
/// others sleep on: the launcher must end them, as with MPI.
class SharedSum {
 public:
  /// Returns the bytes of the window of `ranks` ranks: about 1 MiB a rank for 2 ranks, and less a rank for more ranks.
  /// It is 13 MiB for 16 to 256 ranks.
  [[nodiscard]] static std::size_t window_bytes(int ranks);

  /// Makes one rank's object. `window` has window_bytes(ranks) bytes, aligned to 64 bytes, which are 0 before the first
  /// rank begins; it must outlive this object. Throws UsageError unless 0 <= rank < ranks.
  SharedSum(void* window, int rank, int ranks, SharedSumOptions options = {});

  /// Computes data = the sum over the ranks, and blocks. `data` is contiguous, on the CPU, and of a type that can be
  /// summed. If ranks pass different types or sizes, all of them throw PeerError, and so does every later call on the
  /// window. A tensor without elements is neither exchanged nor compared.
  void all_reduce(const TensorView& data);
  /// These three work like the functions of Communicator, with the errors of all_reduce(). Sums are made in rank order.
  /// all_gather() and broadcast() copy any type through the areas.
  void reduce_scatter(const TensorView& in, const TensorView& out);
  void all_gather(const TensorView& in, const TensorView& out);
  void broadcast(const TensorView& data, int root);

 private:
  struct Line;
  struct Chunks;

  [[nodiscard]] Line& line(int rank) const;
  template <class T>
  [[nodiscard]] T* staged(int rank, std::uint64_t step) const;  ///< place of a chunk's data that other ranks add
  template <class T>
  /// Place of a sum of a chunk's part that other ranks take.
  [[nodiscard]] T* summed(int rank, std::uint64_t step) const;
  /// Returns false if there is nothing to exchange.
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
  /// Receives from each rank r the bytes of(r) of `data`, and sends this rank's to all. A rank sends at most `longest`
  /// bytes.
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
  std::uint64_t step_ = 0;  ///< number of counts of this rank; its line's `counted` has the lower 32 bits
};

}  // namespace lockstep::comm
