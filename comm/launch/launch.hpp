#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// Reads from the environment how this process was started, its rank and the number of ranks (docs/launch.md). Pure
/// functions of the environment. Session calls them before and after it starts MPI.
namespace lockstep::comm {

using Environment = std::map<std::string, std::string, std::less<>>;
[[nodiscard]] Environment process_environment();
/// Returns the value of a variable; empty if the variable is not set or is empty.
[[nodiscard]] std::string_view value_of(const Environment& environment, std::string_view name);

enum class LaunchSource : unsigned char { single, slurm, lightning, torchrun, mpi };

/// One start of a job's ranks. A job may be started again after a failure (RestartPolicy, comm/launch/self_start.hpp).
struct Attempt {
  std::string job{};      ///< name of the job, unique and the same in all its starts; empty: no restarts
  int number = 0;         ///< number of earlier starts of this job
  std::string devices{};  ///< device request that replaces --devices; empty: --devices counts
  int seconds = 0;        ///< seconds since the job's first start
};

struct Launch {
  LaunchSource source = LaunchSource::single;
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank{}, local_size{}, node{}, nodes{};  ///< set if the source provides them
  /// Variables that gave rank and size: "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4". Empty if there are none.
  std::string origin{};
  std::string note{};  ///< remark for the user; may be empty
  /// The launcher's command line, if the program started its ranks itself; otherwise empty.
  std::string started_with{};
  Attempt attempt{};
  /// Describes the start: "started by itself: mpirun -np 4 ..", "started by mpirun or mpiexec", "started by srun",
  /// "started alone". Then follow "restart 2" and the note, if there are any.
  [[nodiscard]] std::string description() const;
};

/// Numbers of a rank among the ranks of its job and of its node.
struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< rank among the ranks of this node
  int local_size = 1;
  int node = 0;  ///< number of the node, 0 .. nodes - 1, in the order of the nodes' lowest ranks
  int nodes = 1;
};

/// Environment variable that tells ranks that their program started them (comm/launch/self_start.hpp). Its value is
/// Launch::started_with.
inline constexpr const char* kStartedWith = "LOCKSTEP_STARTED_WITH";

/// Environment variable with the value of Launch::attempt: "JOB NUMBER DEVICES SECONDS"; "-" means no devices.
inline constexpr const char* kAttempt = "LOCKSTEP_ATTEMPT";
[[nodiscard]] std::string attempt_text(const Attempt& attempt);

/// Returns the launch of the first source in this list that gives rank and size:
///   mpi       mpirun or mpiexec: of Open MPI (OMPI_COMM_WORLD_*), MVAPICH (MV2_COMM_WORLD_*), MPICH, Intel MPI (PMI_*)
///
///   torchrun  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT, all of them
///
///   lightning torchrun's form without RANK: LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; nodes after the
///             first also have NODE_RANK (or GROUP_RANK). LOCAL_WORLD_SIZE, the number of ranks on each node, is also
///             needed there; a program may have it from its --devices (missing_local_size()). The rank is
///             NODE_RANK * LOCAL_WORLD_SIZE + LOCAL_RANK
///
///   slurm     a task of a step (srun): SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS. A
///             batch script is not a task; processes that mpirun or torchrun start there inherit its variables
///
///   single    none of these
///
/// A variable with an empty value counts as not set. UsageError for an invalid LOCKSTEP_ATTEMPT. UsageError, with the
/// variables and their values, if a source violates 0 <= rank < size, is incomplete, or disagrees with a second source.
/// Second sources are two MPI launchers, or RANK and WORLD_SIZE with MPI or a step. With MPI or a step, torchrun's
/// variables may be incomplete, because scripts set them for other programs.
[[nodiscard]] Launch detect_launch(const Environment& environment);

/// Returns true for Lightning's form if LOCAL_WORLD_SIZE is missing.
[[nodiscard]] bool lacks_local_size(const Environment& environment) noexcept;

/// Library through which ranks find each other and exchange host tensors.
enum class Backend : unsigned char { automatic, mpi, gloo };
/// Parses "auto", "mpi" or "gloo". "nccl" means auto, because NCCL connects GPUs over either. Otherwise UsageError.
[[nodiscard]] Backend parse_backend(std::string_view text);

/// Backends that are in a build.
struct Backends {
  bool mpi = false;
  bool gloo = false;
};

/// Returns true if the ranks meet through gloo (meeting_place()), false for MPI or one rank. `automatic` means gloo for
/// ranks of torchrun and Lightning. In a build without MPI, it also means gloo wherever MASTER_ADDR and MASTER_PORT are
/// set. UsageError for several ranks and a backend that the build lacks.
[[nodiscard]] bool meet_by_gloo(const Launch& launch, const Environment& environment, Backend backend,
                                const Backends& have);

/// Address at which the ranks meet without MPI, and how long they wait for each other.
struct MeetingPlace {
  std::string host{};  ///< host of rank 0
  int port = 0;
  std::string origin{};  ///< variables that gave host and port
  std::string job{};     ///< value of TORCHELASTIC_RUN_ID; may be empty
  double timeout_s = 60;
};

/// Reads host and port from MASTER_ADDR and MASTER_PORT. If TORCHELASTIC_USE_AGENT_STORE is True, torchrun's agent
/// itself listens at that port, so the ranks take the next port. LOCKSTEP_PORT replaces the port, LOCKSTEP_MEET_SECONDS
/// the time. UsageError, with the variable's name, for a missing variable or an invalid number.
[[nodiscard]] MeetingPlace meeting_place(const Environment& environment);

/// Compares the detected launch with the world that MPI reports, and returns the real launch. MPI's numbers count if
/// the environment gave none. `library` is MPI's name, for the message. UsageError, with the remedy (--mpi=pmix for
/// srun, the right mpirun, a build with MPI or gloo), if the launcher started more ranks than MPI knows, and if
/// WORLD_SIZE differs from MPI's size.
[[nodiscard]] Launch confirm_launch(const Launch& launch, const Environment& environment, int rank, int size,
                                    std::string_view library);

/// Returns this process's rank for messages, also if detect_launch() fails: the first variable with a rank, or -1.
[[nodiscard]] int likely_rank(const Environment& environment) noexcept;

}  // namespace lockstep::comm
