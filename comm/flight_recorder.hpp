#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/dtype.hpp>

namespace lockstep::comm {

/// Operations that all ranks of a communicator must call together.
enum class Operation : unsigned char { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier, split };
[[nodiscard]] std::string_view name_of(Operation operation);  ///< returns "all_reduce" and so on

struct IssuedOperation {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  std::int64_t elements = 0;               ///< number of elements of the input; recorded exactly up to 2^40 - 1
  int root = 0;                            ///< root rank of a broadcast
  std::int64_t at_ns = 0;                  ///< time of the call in nanoseconds of the steady clock
  [[nodiscard]] std::string text() const;  ///< "all_reduce of 1000 f32", "broadcast of 8 u8 from rank 0" or "barrier"
};

/// The operations that one rank has called on one communicator: their number, a hash of all of them, and the last kKept
/// operations. Only one thread at a time may call add(). Any thread may read at the same time, also a thread of another
/// process that shares the memory. So other ranks can read the log of a rank that hangs. An object whose bytes are all
/// 0 is an empty log.
class FlightRecorder {
 public:
  static constexpr std::int64_t kKept = 1024;

  struct Kept {
    IssuedOperation operation;
    std::uint64_t hash = 0;  ///< hash of this operation and all earlier operations, without their times
  };

  void add(const IssuedOperation& operation) noexcept;
  [[nodiscard]] std::int64_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  /// Returns operation `number`, counted from 1. Returns nullopt if that operation is not yet called or no longer kept.
  [[nodiscard]] std::optional<Kept> at(std::int64_t number) const noexcept;

 private:
  struct Entry {
    std::atomic<std::uint64_t> what;
    std::atomic<std::uint64_t> hash;
    std::atomic<std::int64_t> at_ns;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

  std::atomic<std::int64_t> count_{0};
  std::array<Entry, kKept> entries_{};
};

/// Log of one rank for a communicator.
struct RankLog {
  int rank = 0;
  const FlightRecorder* log = nullptr;
};

/// Returns a text about the first operation of a communicator that differs between ranks: "ranks call different
/// operations: operation 57 of grad is all_reduce of 1000 f32 on rank 0 and all_gather of 20 f32 on rank 1". Returns ""
/// if all ranks called the same operations, even if some ranks have not called all of them yet.
[[nodiscard]] std::string first_difference(std::string_view communicator, std::span<const RankLog> ranks);

/// Returns a text that names the rank with the fewest operations: "rank 1 has not called operation 57 of grad,
/// all_reduce of 1000 f32, as rank 0 has". Returns "" if all ranks have called the same number of operations.
[[nodiscard]] std::string furthest_behind(std::string_view communicator, std::span<const RankLog> ranks);

}  // namespace lockstep::comm
