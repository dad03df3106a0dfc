#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// Functions that find out from environment variables how this process was started, its rank and the number of ranks
/// (docs/launch.md). The functions have no side effects. Session calls them before and after it starts MPI.
namespace lockstep::comm {

using Environment = std::map<std::string, std::string, std::less<>>;
[[nodiscard]] Environment process_environment();
/// Returns the value of the environment variable `name`; an empty text if the variable is not set.
[[nodiscard]] std::string_view value_of(const Environment& environment, std::string_view name);

enum class LaunchSource : unsigned char { single, slurm, lightning, torchrun, mpi };

/// One start of the ranks of a job. After a failure, a job may be started again (RestartPolicy,
/// comm/launch/self_start.hpp).
struct Attempt {
  std::string job{};      ///< unique name, the same in all starts of the job; empty if there are no restarts
  int number = 0;         ///< number of earlier starts of this job
  std::string devices{};  ///< device request that replaces the option --devices; empty if nothing replaces it
  int seconds = 0;        ///< seconds from the job's first start to this start
};

struct Launch {
  LaunchSource source = LaunchSource::single;
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank{}, local_size{}, node{}, nodes{};  ///< set if `source` provides the number
  /// Variables from which rank and size were read: "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4". Empty if rank and
  /// size were not read from variables.
  std::string origin{};
  std::string note{};  ///< remark that is printed for the user; may be empty
  /// Command line of the launcher, if the program has started its own ranks; otherwise empty.
  std::string started_with{};
  Attempt attempt{};
  /// Describes the start: "started by itself: mpirun -np 4 ..", "started by mpirun or mpiexec", "started by srun" or
  /// "started alone", followed by the number of the restart ("restart 2") and the note, if there are any.
  [[nodiscard]] std::string description() const;
};

/// Place of a rank among the ranks of its job and of its node.
struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< rank among the ranks of this node
  int local_size = 1;
  int node = 0;  ///< number of this rank's node; nodes are numbered from 0 in the order of their lowest ranks
  int nodes = 1;
};

/// Environment variable that a program sets for the ranks that it starts itself (comm/launch/self_start.hpp). Its value
/// is Launch::started_with.
inline constexpr const char* kStartedWith = "LOCKSTEP_STARTED_WITH";

/// Environment variable with the value of Launch::attempt: "JOB NUMBER DEVICES SECONDS". DEVICES is "-" if empty.
inline constexpr const char* kAttempt = "LOCKSTEP_ATTEMPT";
[[nodiscard]] std::string attempt_text(const Attempt& attempt);

/// Returns rank and size from the first of these sources that gives them:
///   mpi       mpirun or mpiexec: of Open MPI (OMPI_COMM_WORLD_*), MVAPICH (MV2_COMM_WORLD_*), MPICH, Intel MPI (PMI_*)
///
///   torchrun  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT, all of them
///
///   lightning torchrun's form without RANK: LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Nodes after the
///             first also need NODE_RANK (or GROUP_RANK) and LOCAL_WORLD_SIZE, the number of ranks on each node; a
///             program may take LOCAL_WORLD_SIZE from its --devices (missing_local_size()). The rank is
///             NODE_RANK * LOCAL_WORLD_SIZE + LOCAL_RANK
///
///   slurm     a task of a step (srun): SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS. SLURM's
///             variables in a batch script, or in processes that it starts without srun, do not count
///
///   single    none of these variables: one rank
///
/// A variable with an empty value counts as not set. Throws UsageError, with the variables and their values, in these
/// cases:
///   - LOCKSTEP_ATTEMPT is invalid
///   - a source gives a rank outside of 0 to size - 1
///   - the variables of a source are incomplete. But with MPI or a SLURM step, torchrun's variables may be incomplete,
///     because scripts set them for other programs
///   - the variables of two MPI launchers disagree, or RANK or WORLD_SIZE disagrees with MPI or with a SLURM step
[[nodiscard]] Launch detect_launch(const Environment& environment);

/// Returns true if the environment has Lightning's form (detect_launch()) without LOCAL_WORLD_SIZE.
[[nodiscard]] bool lacks_local_size(const Environment& environment) noexcept;

/// Library through which ranks find each other and exchange host tensors.
enum class Backend : unsigned char { automatic, mpi, gloo };
/// Parses "auto", "mpi" or "gloo". "nccl" means "auto", because NCCL connects GPUs with either library. Throws
/// UsageError for any other text.
[[nodiscard]] Backend parse_backend(std::string_view text);

/// Says which backends this build contains.
struct Backends {
  bool mpi = false;
  bool gloo = false;
};

/// Returns true if the ranks meet through gloo (meeting_place()); false if they meet through MPI, or if there is one
/// rank. Backend::automatic means gloo for ranks of torchrun and Lightning, and in a build without MPI for all ranks
/// with MASTER_ADDR and MASTER_PORT. Throws UsageError for several ranks if the build lacks the backend.
[[nodiscard]] bool meet_by_gloo(const Launch& launch, const Environment& environment, Backend backend,
                                const Backends& have);

/// Address at which ranks without MPI meet, and the time for which they wait for each other.
struct MeetingPlace {
  std::string host{};  ///< host name or address of rank 0
  int port = 0;
  std::string origin{};  ///< variables from which host and port were read
  std::string job{};     ///< value of the variable TORCHELASTIC_RUN_ID; may be empty
  double timeout_s = 60;
};

/// Reads host and port from MASTER_ADDR and MASTER_PORT. If TORCHELASTIC_USE_AGENT_STORE is True, torchrun's agent
/// listens at that port, so the ranks meet at the next port. LOCKSTEP_PORT replaces the port, and LOCKSTEP_MEET_SECONDS
/// the time to wait. Throws UsageError, with the variable's name, for a missing variable or an invalid number.
[[nodiscard]] MeetingPlace meeting_place(const Environment& environment);

/// Compares `launch` with `rank` and `size` as MPI reports them. Returns `launch` if the numbers agree, otherwise a
/// Launch with MPI's numbers. `library` is MPI's name, for messages. Throws UsageError if the launcher started more
/// ranks than MPI knows, or if RANK or WORLD_SIZE is set and differs from MPI's number. The error's text has a remedy:
/// --mpi=pmix for srun, the right mpirun, or a build with MPI or gloo.
[[nodiscard]] Launch confirm_launch(const Launch& launch, const Environment& environment, int rank, int size,
                                    std::string_view library);

/// Returns this process's rank for messages, even if detect_launch() would fail; -1 if no variable gives a rank.
[[nodiscard]] int likely_rank(const Environment& environment) noexcept;

}  // namespace lockstep::comm
