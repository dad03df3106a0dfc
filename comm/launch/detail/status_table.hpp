#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/comm/flight_recorder.hpp>
#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::comm::detail {

/// Place of a rank among the ranks of its node.
struct TablePlace {
  std::string job;  ///< text that is equal for the ranks of a job on a node, and differs from this user's other jobs
  int rank = 0;
  int local_rank = 0;
  int local_size = 1;
  bool one_node = true;  ///< true if all ranks are on this node, so that local ranks are the ranks
};

/// Reads the place from the launcher's variables. nullopt for a rank that is alone on its node, or without such
/// variables.
[[nodiscard]] std::optional<TablePlace> table_place(const Launch& launch, const Environment& environment);

/// Communicators whose operations the node's ranks can read: those of a Session, and `gpu`, that of ranks on GPUs.
enum class LoggedCommunicator : unsigned char { grad, inline_ops, control, gpu };

/// Activity of each rank of a node, in memory that the ranks share. Each rank writes its own entry, and can read the
/// other entries even while their ranks hang or are stopped. Needs no MPI: ranks find the memory by the name of their
/// job, before MPI starts.
///
/// The memory is a file in /dev/shm, with 100 kB for each rank. The file is unlinked after all ranks of the node have
/// opened it, so a killed job leaves nothing. A job that starts an hour later removes the file of a job killed earlier.
class StatusTable {
 public:
  /// Opens or makes the file. Throws FileError, with the path, if the file cannot be made or mapped.
  explicit StatusTable(const TablePlace& place);
  ~StatusTable();
  StatusTable(const StatusTable&) = delete;
  StatusTable& operator=(const StatusTable&) = delete;

  /// Returns the activity of this rank, which its watchdog writes.
  [[nodiscard]] Progress& progress() noexcept;
  /// Records that this rank is alive now.
  void alive() noexcept;
  /// Returns true for the first call of all ranks of the node.
  [[nodiscard]] bool first_to_tell() noexcept;
  /// Returns a line for each other rank that has not written for `seconds`: "no word from rank 1 (host a, pid 12) for 3
  /// s: the process is stopped; it was computing step 7", "no word from rank 1 (host a): it has not begun".
  [[nodiscard]] std::vector<std::string> silent(double seconds) const;
  /// Returns true for the first call of all ranks of the node, until end_of_stall().
  [[nodiscard]] bool first_of_stall() noexcept;
  void end_of_stall() noexcept;
  /// Returns true once in `seconds` for one of the ranks of the node. That rank must send the node's heartbeat.
  [[nodiscard]] bool claims_heartbeat(double seconds) noexcept;
  [[nodiscard]] int ranks() const noexcept { return place_.local_size; }
  /// Returns a line for each rank: "rank 2: computing step 7, 1 of 3 buckets enqueued, for 12 s, process stopped",
  /// "rank 3: has not begun".
  [[nodiscard]] std::vector<std::string> table() const;
  [[nodiscard]] static std::string host();  ///< name of this node
  /// Returns the log of this rank's operations on a communicator.
  [[nodiscard]] FlightRecorder& log(LoggedCommunicator communicator) noexcept;
  /// Returns first_difference() of the first communicator that has one, over the ranks that have opened the table.
  [[nodiscard]] std::string first_difference() const;
  /// Returns furthest_behind() of each communicator that has one.
  [[nodiscard]] std::vector<std::string> behind() const;
  /// Returns each rank's activity and, for each communicator, the number of operations and the last ones with their
  /// age.
  [[nodiscard]] Json operations() const;
  /// Unlinks the file, also if some ranks have not opened it.
  void remove() noexcept;

 private:
  struct Memory;
  [[nodiscard]] std::vector<RankLog> logs(std::size_t communicator) const;
  TablePlace place_;
  std::string path_;
  Memory* memory_ = nullptr;
};

}  // namespace lockstep::comm::detail
