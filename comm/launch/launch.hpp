#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// Who started this process, and as which of how many ranks, as far as the environment tells (docs/launch.md). Pure
/// functions of the environment; Session asks them before and after it starts MPI.
namespace lockstep::comm {

using Environment = std::map<std::string, std::string, std::less<>>;
[[nodiscard]] Environment process_environment();

enum class LaunchSource : unsigned char { single, slurm, torchrun, mpi, given };

/// What is known from elsewhere, e.g. a program's own options; empty: nothing.
struct GivenPlace {
  std::optional<int> rank{}, size{};              ///< both or none
  std::optional<int> local_rank{}, local_size{};  ///< both or none
};

struct Launch {
  LaunchSource source = LaunchSource::single;
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank{}, local_size{}, node{}, nodes{};  ///< where the source tells
  std::string origin{};  ///< the variables it comes from, "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4"; or empty
  std::string note{};    ///< what a user should know beside it; or empty
  std::string started_with{};  ///< the launcher's command line, when the program started its ranks itself; or empty
  /// "started by itself: mpirun -np 4 ..", "started by mpirun or mpiexec", "started by srun", "started alone"; and
  /// note.
  [[nodiscard]] std::string description() const;
};

/// How ranks learn that their program started them (comm/launch/self_start.hpp): this variable holds
/// Launch::started_with.
inline constexpr const char* kStartedWith = "LOCKSTEP_STARTED_WITH";

/// The first of these that says rank and size:
///   given     by the program
///
///   mpi       mpirun or mpiexec: of Open MPI (OMPI_COMM_WORLD_*), MVAPICH (MV2_COMM_WORLD_*), MPICH, Intel MPI (PMI_*)
///
///   torchrun  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT, all of them
///
///   slurm     a task of a step (srun): SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS; a batch
///             script is no task, and what mpirun or torchrun start there inherits variables that mean the script
///
///   single    nothing of these
///
/// A variable that is set to nothing counts as not set. UsageError that names the variables and their values when a
/// source says other than 0 <= rank < size, is there in part only, or disagrees with a second one: two MPI launchers,
/// or RANK and WORLD_SIZE with MPI or a step. RANK, WORLD_SIZE and the others of torchrun may be there in part beside
/// MPI or a step, where scripts set them for other programs.
[[nodiscard]] Launch detect_launch(const Environment& environment, const GivenPlace& given = {});

/// Compares what was detected with the world that MPI reports (`library`: its name, for the message). Returns the
/// launch as it is: MPI's word counts where the environment said nothing. UsageError when the launcher started more
/// ranks than MPI knows of, with what to do: --mpi=pmix for srun, the right mpirun, a build with MPI; when WORLD_SIZE
/// says other than MPI; and for ranks that torchrun started, since MPI is the only way here for ranks to find each
/// other.
[[nodiscard]] Launch confirm_launch(const Launch& launch, const Environment& environment, int rank, int size,
                                    std::string_view library);

/// This process's rank for messages, where detect_launch() fails too: the first variable that holds one, else -1.
[[nodiscard]] int likely_rank(const Environment& environment) noexcept;

[[nodiscard]] std::string_view to_string(LaunchSource source);

}  // namespace lockstep::comm
