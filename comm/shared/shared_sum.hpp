#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

struct SharedSumOptions {
  bool each_has_a_core = false;  ///< no rank takes the core of another one by looking
  /// Called again and again, at least every millisecond, by a rank that waits for longer than 100 us, so that something
  /// else goes on meanwhile. Must not throw.
  std::function<void()> idle{};
};

/// All-reduces, and what else a sum over several nodes needs, of ranks that see the same memory, a window: processes of
/// one node or threads. It makes no call of MPI and knows nothing of how the window came to be.
///
/// Every element is x_0 + x_1 + .. in rank order, each sum rounded to the element type: the bits are the same on all
/// ranks and depend neither on timing nor on which of the two ways below is taken.
///
/// The window has a line and a staging area for each rank. A rank writes into its own only, and says so by counting up
/// its line's counter: nothing else synchronises the ranks.
///   up to 32 KiB / ranks          each rank puts its data into its area and counts; when all have counted, each adds
///                                 all areas
///   more                          in chunks: (1) each rank puts the parts of the others into its area; (2) each adds
///                                 its own part and puts the sum there; (3) each takes the others' sums. A rank does
///                                 (1) for a chunk, (2) for the one before and (3) for the one before that, then
///                                 counts: it waits once a chunk. Areas fit into the caches, so that memory sees the
///                                 data twice: read and written. What is larger than the caches is written past them.
/// A chunk's area is used again three chunks later, and a sum's two: what the counters then say proves that no rank
/// reads there any more. An operation needs no step at its end: the next one's first count says that this one is read.
///
/// A waiting rank looks for about a microsecond, where each rank of the window has a core; then it gives its core to
/// whoever wants it for up to 100 us; then it sleeps in the kernel until the rank that it waits for wakes it. A rank
/// that dies leaves the others asleep: to end them is the launcher's task, as with MPI.
class SharedSum {
 public:
  /// Of the window of so many ranks: about 1 MiB a rank for 2 ranks, less for more; 13 MiB for 16 to 256 ranks.
  [[nodiscard]] static std::size_t window_bytes(int ranks);

  /// `window`: window_bytes(ranks) bytes, 0 before the first rank begins, aligned to 64 bytes. It outlives this object.
  /// One object for each rank; UsageError unless 0 <= rank < ranks.
  SharedSum(void* window, int rank, int ranks, SharedSumOptions options = {});

  /// data = the sum over the ranks; contiguous, on the CPU, of a type that can be summed. Blocks. Ranks that call it
  /// with different types or sizes all get a PeerError; afterwards every call on the window is a PeerError. A tensor
  /// without elements takes no part in that.
  void all_reduce(const TensorView& data);
  /// As those of Communicator, and otherwise as all_reduce(): sums are made in rank order, and what is
  /// only moved passes through the areas, of any type.
  void reduce_scatter(const TensorView& in, const TensorView& out);
  void all_gather(const TensorView& in, const TensorView& out);
  void broadcast(const TensorView& data, int root);

 private:
  struct Line;
  struct Chunks;

  [[nodiscard]] Line& line(int rank) const;
  template <class T>
  [[nodiscard]] T* staged(int rank, std::uint64_t step) const;  ///< (a chunk), for what others add
  template <class T>
  [[nodiscard]] T* summed(int rank, std::uint64_t step) const;  ///< (a part of a chunk), for what others take
  /// False where there is nothing to exchange.
  [[nodiscard]] bool is_shared(const char* operation, std::int64_t elements) const;
  void announce(std::uint64_t what);
  void count();
  void wait_for_all();  ///< until every rank has counted as often as this one
  void check_same(std::uint64_t what);
  template <class T>
  void each_adds_all(T* data, const Chunks& chunks, bool streaming, std::uint64_t what);
  template <class T>
  void each_adds_and_keeps_its_part(const T* in, T* out, std::int64_t n, std::uint64_t what);
  struct Bytes {
    std::int64_t begin, count;
  };
  /// Every rank gets of each rank r the bytes of(r) of `data`, `longest` at most.
  template <class Of>
  void each_shows_a_part(std::byte* data, std::int64_t longest, const Of& of, std::uint64_t what);
  template <class T>
  void each_adds_its_part(T* data, const Chunks& chunks, bool streaming, std::uint64_t what);

  std::byte* window_;
  int rank_;
  int ranks_;
  std::size_t chunk_bytes_;
  SharedSumOptions options_;
  bool broken_ = false;     ///< the ranks called different operations
  std::uint64_t step_ = 0;  ///< how often this rank has counted; its line has the lower half
};

}  // namespace lockstep::comm
