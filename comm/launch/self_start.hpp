#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

/// Functions with which a program of this project starts its own ranks if the user has started it without a launcher.
/// For example, `train_resnet --devices cpu:4` runs itself again under mpirun with 4 ranks (docs/launch.md). The
/// library never starts ranks for programs of other projects.
namespace lockstep::comm {

enum class Launcher : unsigned char { automatic, mpirun, srun, none };
/// Parses "auto", "mpirun", "srun" or "none". Throws UsageError for another text.
[[nodiscard]] Launcher parse_launcher(std::string_view text);

/// Rules for starting the ranks again after a failure.
struct RestartPolicy {
  int most = 0;  ///< largest number of restarts; 0: no restarts
  /// Least number of ranks of a restart; 0: a restart has as many ranks as before. If progress() returns the same text
  /// before and after a start, the next start has the next lower number of ranks that `fits` accepts, but at least
  /// min_ranks. If there is no such number, the next start has as many ranks as before. If min_ranks is above 0,
  /// --devices must be cpu:N or usable:N (N of the node's usable GPUs), on one node.
  int min_ranks = 0;
  /// Returns true if the job can have this many ranks. If `fits` is empty, the job can have any number of ranks.
  std::function<bool(int ranks)> fits{};
  /// Returns a text that changes when the ranks have saved a state for a restart. Must be set if min_ranks is above 0.
  std::function<std::string()> progress{};
  /// Called once, before the first start, with the job's name (Attempt::job). The object that `hold` returns is kept
  /// until the last start has ended.
  std::function<std::shared_ptr<void>(const std::string& job)> hold{};
};

/// Ranks that the user requests on the command line.
struct RanksRequest {
  DeviceRequest devices{};
  int nodes = 0;           ///< number of nodes; 0: all nodes of the host file or batch job, or one
  std::string hostfile{};  ///< file with the nodes' names for mpirun's --hostfile; empty: no file
  Launcher launcher = Launcher::automatic;
  Backend backend = Backend::automatic;  ///< library by which the ranks find each other
  RestartPolicy restart{};
  double watchdog_s = 300;  ///< seconds that the launcher may be stopped or have no living rank; 0: no limit
  /// If true, a program whose output cannot be written fails (exit code 3). If false, it prints a note and continues.
  bool prints_result = true;
};

/// Facts about this machine and process on which the result of plan_self_start() depends.
struct StartSite {
  std::function<int()> count_gpus = [] { return 0; };  ///< counts the GPUs; called at most once, and only if needed
  int cores = 1;                                       ///< number of cores of this machine that this process may use
  bool root = false;
};

struct SelfStart {
  std::vector<std::string> arguments;  ///< launcher's name and options, without the program that it starts
  Environment variables{};             ///< additional environment variables for the launcher
  std::string note{};                  ///< permissions that the plan adds (--oversubscribe), with reasons; or empty
  bool here = false;                   ///< true: the ranks are the launcher's children, on this machine
};

/// Returns the number of ranks on each node that `devices` requests, if `environment` is the environment of a rank that
/// PyTorch Lightning started without LOCAL_WORLD_SIZE. Returns nullopt for any other process, and if `devices` has no
/// number ("auto", "gpu", "cpu"). run_program() sets LOCAL_WORLD_SIZE to the returned number.
[[nodiscard]] std::optional<int> missing_local_size(const DeviceRequest& devices, const Environment& environment);

/// Plans how to start the ranks. Returns nullopt if this process is to be the only rank or already is one of several.
///
/// The device request gives the number of ranks on each node: cpu:4 means four ranks, "3" three, usable:2 two, and a
/// list one rank for each entry. gpu and auto mean one rank for each GPU (in a batch job, SLURM_GPUS_ON_NODE is the
/// number of GPUs, if it is set). The launcher is srun inside a SLURM allocation, unless a host file is given;
/// otherwise it is Open MPI's mpirun. The plan has an option not to bind a rank to a single core, because a rank
/// computes with several threads. If needed, it also has options that let mpirun run as root and start more ranks than
/// cores.
///
/// Throws UsageError in these cases:
///   - the request is for GPUs of this machine, but the machine has none
///   - the number of nodes is below 0
///   - there would be more than 2^20 ranks in all or, if all ranks are on this machine, more than 64 for each core
///   - several nodes are requested without a host file or an allocation
///   - a host file is given for srun, or srun is requested outside of an allocation
///   - Backend::gloo is requested without a meeting place
///   - the RestartPolicy is invalid
///   - a launcher that this function planned has started this process, but the process is the only rank
[[nodiscard]] std::optional<SelfStart> plan_self_start(const RanksRequest& request, const Environment& environment,
                                                       const StartSite& site);

/// If the program needs a launcher, runs the program again under the launcher, waits until the launcher ends, and
/// returns the launcher's exit code, or 128 + n if signal n ended the launcher. Returns nullopt if this process is to
/// continue as a rank. Call self_start() before this process uses CUDA or MPI or starts a thread. `request` reads the
/// command line; it is called only if no launcher started this process. If `request` returns nothing (--help) or
/// throws, this process continues as a rank, which prints the help or the error.
///
/// While this process waits, it forwards SIGUSR1 and SIGUSR2 to the launcher. SIGTERM, SIGINT and SIGHUP reach the
/// ranks as SIGUSR1, to which training reacts with a checkpoint; mpirun itself would kill the ranks soon after SIGTERM.
/// A second such signal, more than a second later, goes to the launcher as SIGTERM. The launcher leads its own process
/// group, so Ctrl-C, too, reaches it only through this process. Under mpirun, Ctrl-Z (SIGTSTP) stops the ranks, too,
/// and SIGCONT (fg) continues them.
///
/// If all ranks are on this machine, and the launcher is stopped or has no living rank for RanksRequest::watchdog_s (at
/// least 5 s; after a request to stop, 10 s), this process ends the launcher with code 76 and a line of text.
///
/// If a rank ends with an exit code of lockstep, mpirun's own message about that rank is not printed.
///
/// If RestartPolicy::most is above 0, this process starts the ranks again after they end, and prints a line on standard
/// error. It does not start them again if they finished (code 0), had bad input (2), could not be run (127), or were
/// stopped by a signal (75, or a signal that this process forwarded). Launch::attempt gives the ranks the number of the
/// start. With "gpu" or "auto", each start counts the GPUs again, so a restart uses only the GPUs that still work. If
/// restarts are allowed, even a job of one rank runs in a child process.
///
/// Throws UsageError if the launcher is not installed, the host file cannot be read, or this build has no MPI.
[[nodiscard]] std::optional<int> self_start(int argc, char** argv,
                                            const std::function<std::optional<RanksRequest>()>& request);

/// Like run_program() in session.hpp, but first starts the ranks of `request`, if no launcher did. On each rank,
/// `watchdog_s`, if set, reads the seconds of the session's watchdog from the command line.
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                const std::function<std::optional<RanksRequest>()>& request,
                const std::function<double()>& watchdog_s = {}) noexcept;

/// Checks that the session's ranks are as `request` says. Collective. It is an error if the number of nodes differs
/// from request.nodes, or if a host file or restarts are requested although the program did not start its ranks. Rank 0
/// prints the error, and all ranks throw AgreedFailure.
void require_ranks_as_requested(Session& session, const RanksRequest& request);

}  // namespace lockstep::comm
