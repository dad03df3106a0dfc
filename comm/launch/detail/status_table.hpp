#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/comm/flight_recorder.hpp>
#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::comm::detail {

/// A rank's place among the ranks of its node, and the job for which these ranks share a StatusTable.
struct TablePlace {
  /// Text that is equal on all ranks of the job on this node, and different for other jobs of this user.
  std::string job;
  int rank = 0;
  int local_rank = 0;
  int local_size = 1;
  bool one_node = true;  ///< true if the job has no other node, so that a local rank is also the rank
};

/// Reads a rank's place from the launcher's variables. Returns nullopt if the rank is alone on its node, or if the
/// launcher sets no such variables.
[[nodiscard]] std::optional<TablePlace> table_place(const Launch& launch, const Environment& environment);

/// Communicators whose operations other ranks of the node can read: the three communicators of a Session, and `gpu`,
/// the communicator by which ranks on GPUs exchange gradients.
enum class LoggedCommunicator : unsigned char { grad, inline_ops, control, gpu };

/// Activity of each rank of a node, in memory that the ranks share. Each rank writes its own entry, and can read the
/// other ranks' entries even while those ranks hang or are stopped. Needs no MPI: before MPI starts, the ranks find the
/// memory by the job's name.
///
/// The memory is a file in /dev/shm, with 100 kB for each rank. The file is unlinked after all ranks of the node have
/// opened it, so a job that is killed afterwards leaves no file. If a job is killed before the file is unlinked, the
/// file stays. Another job of the same user removes the file if it starts more than an hour later.
class StatusTable {
 public:
  /// Opens the file, or makes it. Throws FileError, with the path, if the file cannot be opened or mapped.
  explicit StatusTable(const TablePlace& place);
  ~StatusTable();
  StatusTable(const StatusTable&) = delete;
  StatusTable& operator=(const StatusTable&) = delete;

  /// Returns the memory for this rank's activity, which this rank's watchdog writes.
  [[nodiscard]] Progress& progress() noexcept;
  /// Records that this rank is alive now.
  void alive() noexcept;
  /// Returns true once on each node: for the first call by any of the node's ranks.
  [[nodiscard]] bool first_to_tell() noexcept;
  /// Returns a line for each other rank that has not written for `seconds`: "no word from rank 1 (host a, pid 12) for 3
  /// s: the process is stopped; it was computing step 7" or "no word from rank 1 (host a): it has not begun".
  [[nodiscard]] std::vector<std::string> silent(double seconds) const;
  /// Returns true for the first call by any of the node's ranks, and for the first call after each end_of_stall().
  [[nodiscard]] bool first_of_stall() noexcept;
  void end_of_stall() noexcept;
  /// Returns true to one of the node's ranks, once in `seconds`. That rank must then send the node's heartbeat.
  [[nodiscard]] bool claims_heartbeat(double seconds) noexcept;
  [[nodiscard]] int ranks() const noexcept { return place_.local_size; }
  /// Returns a line for each rank of the node, such as "rank 2: computing step 7, 1 of 3 buckets enqueued, for 12 s,
  /// process stopped" or "rank 3: has not begun".
  [[nodiscard]] std::vector<std::string> table() const;
  [[nodiscard]] static std::string host();  ///< name of this node
  /// Returns the log of this rank's operations on `communicator`.
  [[nodiscard]] FlightRecorder& log(LoggedCommunicator communicator) noexcept;
  /// Compares the operations of the ranks that have opened the table. Returns the text of comm::first_difference() for
  /// the first communicator with a difference; empty if there is none.
  [[nodiscard]] std::string first_difference() const;
  /// Returns furthest_behind() of each communicator on which some rank has called fewer operations than another.
  [[nodiscard]] std::vector<std::string> behind() const;
  /// Returns each rank's activity, and its number of operations and last operations (with age) on each communicator.
  [[nodiscard]] Json operations() const;
  /// Unlinks the file, even if some ranks have not opened it.
  void remove() noexcept;

 private:
  struct Memory;
  [[nodiscard]] std::vector<RankLog> logs(std::size_t communicator) const;
  TablePlace place_;
  std::string path_;
  Memory* memory_ = nullptr;
};

}  // namespace lockstep::comm::detail
