#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/comm/flight_recorder.hpp>
#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep::comm::detail {

/// A rank among the ranks of its node.
struct BoardPlace {
  std::string job;  ///< equal for the ranks of a job on a node; no other job of this user has the same
  int rank = 0;
  int local_rank = 0;
  int local_size = 1;
  bool one_node = true;  ///< local ranks are the ranks
};

/// As the launcher's variables say. Nothing for a rank that is alone on its node, or whose launcher does not tell.
[[nodiscard]] std::optional<BoardPlace> board_place(const Launch& launch, const Environment& environment);

/// The communicators of a Session whose operations the ranks of a node can read, and that of ranks on GPUs.
enum class LoggedCommunicator : unsigned char { grad, inline_ops, control, gpu };

/// What the ranks of a node are doing, in memory that they share. Each writes its own entry, and reads those of others
/// also while they are stuck or stopped. It needs no MPI: ranks find it by the name of their job before MPI starts.
///
/// A file in /dev/shm, of 100 kB for each rank. It loses its name when all ranks of the node have it, so a killed job
/// leaves nothing; what was killed before that is removed by a job an hour later.
class StatusTable {
 public:
  /// FileError naming the file that cannot be made or mapped.
  explicit StatusTable(const BoardPlace& place);
  ~StatusTable();
  StatusTable(const StatusTable&) = delete;
  StatusTable& operator=(const StatusTable&) = delete;

  /// What this rank is doing, for its watchdog to write.
  [[nodiscard]] Progress& progress() noexcept;
  /// This rank is alive.
  void alive() noexcept;
  /// True for the first call among all ranks of the node.
  [[nodiscard]] bool first_to_tell() noexcept;
  /// A line for each other rank that has not written for so many seconds: "no word from rank 1 (host a, pid 12) for 3
  /// s: the process is stopped; it was computing step 7", "no word from rank 1 (host a): it has not begun".
  [[nodiscard]] std::vector<std::string> silent(double seconds) const;
  /// True for the first call among all ranks of the node, until end_of_stall().
  [[nodiscard]] bool first_of_stall() noexcept;
  void end_of_stall() noexcept;
  /// True for one of all ranks of the node, once in so many seconds: it speaks for the node.
  [[nodiscard]] bool takes_the_word(double seconds) noexcept;
  [[nodiscard]] int ranks() const noexcept { return place_.local_size; }
  /// A line for each rank: "rank 2: computing step 7, 1 of 3 buckets enqueued, for 12 s, process stopped", "rank 3: has
  /// not begun".
  [[nodiscard]] std::vector<std::string> table() const;
  [[nodiscard]] static std::string host();  ///< name of this node
  /// This rank's operations on one of the communicators.
  [[nodiscard]] FlightRecorder& log(LoggedCommunicator communicator) noexcept;
  /// Of the ranks that have come: the first communicator's first_difference() that is not empty.
  [[nodiscard]] std::string first_difference() const;
  /// Of each communicator furthest_behind(), where it is not empty.
  [[nodiscard]] std::vector<std::string> behind() const;
  /// By rank: what it is doing, and of each communicator how many operations it has called, and the last ones with
  /// their age.
  [[nodiscard]] Json operations() const;
  /// Gives the name up also when some ranks have not come.
  void remove() noexcept;

 private:
  struct Board;
  [[nodiscard]] std::vector<RankLog> logs(std::size_t communicator) const;
  BoardPlace place_;
  std::string path_;
  Board* board_ = nullptr;
};

}  // namespace lockstep::comm::detail
