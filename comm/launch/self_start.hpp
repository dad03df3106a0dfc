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

/// Lets a program that a user started by hand start the ranks of its --devices option: `train_resnet --devices cpu:4`
/// runs itself under mpirun (docs/launch.md). This is for programs of this project; a library never does this.
namespace lockstep::comm {

enum class Launcher : unsigned char { automatic, mpirun, srun, none };
/// Parses "auto", "mpirun", "srun" or "none". Otherwise UsageError.
[[nodiscard]] Launcher parse_launcher(std::string_view text);

/// Rules for starting the ranks again after a failure.
struct RestartPolicy {
  int most = 0;  ///< most restarts; 0: no restarts
  /// Least number of ranks; 0: restarts never reduce the number. If progress() did not change during a start, the next
  /// start has fewer ranks: the next lower number that `fits`, and at least min_ranks. If no lower number fits, the
  /// number stays. Above 0, --devices must be cpu:N or usable:N (N of the node's usable GPUs), on one node.
  int min_ranks = 0;
  /// Returns true if the job can have this many ranks. If empty, the job can have any number.
  std::function<bool(int ranks)> fits{};
  /// Returns a text that changes when the ranks have saved a state for a restart. Required with min_ranks.
  std::function<std::string()> progress{};
  /// Called once with Attempt::job, before the first start. The returned object lives until the last start has ended.
  std::function<std::shared_ptr<void>(const std::string& job)> hold{};
};

/// Request of the command line for ranks.
struct RanksRequest {
  DeviceRequest devices{};
  int nodes = 0;           ///< number of nodes; 0: one, or all nodes of the host file or allocation
  std::string hostfile{};  ///< value of mpirun's --hostfile; may be empty
  Launcher launcher = Launcher::automatic;
  Backend backend = Backend::automatic;  ///< how the ranks meet, whoever starts them
  RestartPolicy restart{};
  double watchdog_s = 300;  ///< longest time for a launcher to be stopped, or without a living rank; 0: no limit
  /// True: output that cannot be written is a failure (3); false: a note is printed and the run continues.
  bool prints_result = true;
};

/// Facts about this machine and process on which the plan depends.
struct StartSite {
  std::function<int()> count_gpus = [] { return 0; };  ///< called at most once, and only if needed
  int cores = 1;                                       ///< number of cores of this machine that this process may use
  bool root = false;
};

struct SelfStart {
  std::vector<std::string> arguments;  ///< the launcher and its options; the program and its arguments follow them
  Environment variables{};             ///< additional environment variables for the launcher
  std::string note{};                  ///< permissions that nobody requested, with reasons; may be empty
  bool here = false;                   ///< true: the ranks are the launcher's children
};

/// Returns the number of ranks of each node that `devices` gives, for a rank in Lightning's form without
/// LOCAL_WORLD_SIZE. Lightning does not set this variable: its own `devices` is this number. nullopt for any other
/// process, and if `devices` gives no number ("auto", "gpu", "cpu"). run_program() sets LOCAL_WORLD_SIZE to the number.
[[nodiscard]] std::optional<int> missing_local_size(const DeviceRequest& devices, const Environment& environment);

/// Returns the launcher's command line. nullopt if this process is to be the only rank, or is already one of several.
///
/// Ranks on each node: cpu:4 means four, "3" three, usable:2 two, and a list one for each entry. gpu and auto mean one
/// for each GPU (in a batch job SLURM_GPUS_ON_NODE, if it is set). The launcher is srun inside a SLURM allocation,
/// unless a host file is given; otherwise it is Open MPI's mpirun. Both are told not to bind ranks to single cores,
/// because a rank computes with several threads. mpirun may run as root if this process does (unless the environment
/// already says so), and may start more ranks than cores.
///
/// UsageError in these cases: GPUs on only this machine, which has none; nodes below 0; more than 2^20 ranks in all or,
/// on only this machine, 64 for each core; several nodes without a host file or an allocation; a host file with srun;
/// srun outside of an allocation; Backend::gloo without a meeting place; an invalid RestartPolicy; this process was
/// already started in this way and still is alone.
[[nodiscard]] std::optional<SelfStart> plan_self_start(const RanksRequest& request, const Environment& environment,
                                                       const StartSite& site);

/// Runs this program again under the launcher, if it needs one, waits for it, and returns its exit code, or 128 + n if
/// signal n ended it. Returns nullopt if this process is to continue as a rank. Call it before CUDA, MPI or a thread
/// exists. `request` reads the command line; it is called only if no launcher started this process. If `request`
/// returns nothing (--help) or throws, nothing is started, and this process continues as a rank and reports the error.
///
/// While it waits, it forwards SIGUSR1 and SIGUSR2. SIGTERM, SIGINT and SIGHUP reach the ranks as SIGUSR1, to which
/// training reacts with a checkpoint; mpirun itself would kill the ranks soon after SIGTERM. A second such signal, more
/// than a second later, goes to the launcher as SIGTERM. The launcher leads its own process group, so Ctrl-C, too,
/// reaches it only through this process. Under mpirun, Ctrl-Z (SIGTSTP) stops the ranks, too, and SIGCONT (fg)
/// continues them.
///
/// Ends a launcher on only this machine, with code 76 and a line of text, if it is stopped or has no living rank for
/// RanksRequest::watchdog_s (at least 5 s). After a request to stop, this time is 10 s.
///
/// mpirun's own message about a rank that ended with a code of lockstep's is not printed.
///
/// With RestartPolicy::most, starts the ranks again, with a line on standard error, unless they finished (0), had bad
/// input (2), or were stopped by a signal (75, or a signal that this process forwarded). Then a program that needs no
/// launcher runs in its own process, too. Ranks see Launch::attempt. Each start counts the GPUs again ("gpu", "auto"),
/// so a restart takes the GPUs that remain. UsageError if the launcher is not installed, the host file cannot be read,
/// or this build has no MPI.
[[nodiscard]] std::optional<int> self_start(int argc, char** argv,
                                            const std::function<std::optional<RanksRequest>()>& request);

/// Does the work of run_program() (session.hpp), for a program that starts its own ranks. On each rank, `watchdog_s`,
/// if set, reads the seconds of the session's watchdog from the command line.
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                const std::function<std::optional<RanksRequest>()>& request,
                const std::function<double()>& watchdog_s = {}) noexcept;

/// Checks that the ranks match the request. Collective. UsageError, printed once, if the number of nodes differs from
/// request.nodes, or if a host file or restarts are requested although the program did not start its ranks.
void require_ranks_as_requested(Session& session, const RanksRequest& request);

}  // namespace lockstep::comm
