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
/// runs itself under mpirun (docs/launch.md). For programs of this project; a library never does this.
namespace lockstep::comm {

enum class Launcher : unsigned char { automatic, mpirun, srun, none };
/// Parses "auto", "mpirun", "srun" or "none". UsageError otherwise.
[[nodiscard]] Launcher parse_launcher(std::string_view text);

/// Rules for starting the ranks again after a failure.
struct RestartPolicy {
  int most = 0;  ///< most restarts; 0: none
  /// After a start without progress, the next start has fewer ranks: one less, or the next number that `fits`, but at
  /// least min_ranks. 0: always the same number. For cpu:N and usable:N on one node.
  int min_ranks = 0;
  /// True when the job can have this many ranks; with min_ranks the next such number is taken. Not set: any number.
  std::function<bool(int ranks)> fits{};
  /// Returns a text that changes when the ranks have saved a state from which a restart continues. Required with
  /// min_ranks.
  std::function<std::string()> progress{};
  /// Called once, before the first start, with Attempt::job. The returned object lives until there is no further start.
  std::function<std::shared_ptr<void>(const std::string& job)> hold{};
};

/// Request of the command line.
struct RanksRequest {
  DeviceRequest devices{};
  int nodes = 0;           ///< 0: one, or all nodes of the host file or allocation
  std::string hostfile{};  ///< mpirun's --hostfile; or empty
  Launcher launcher = Launcher::automatic;
  Backend backend = Backend::automatic;  ///< how the ranks meet, whoever starts them
  RestartPolicy restart{};
  double watchdog_s = 300;    ///< longest time for a launcher to be stopped, or without a living rank; 0: no limit
  bool prints_result = true;  ///< output that cannot be written is a failure (3); false: only a note, the run goes on
};

/// Facts about this machine and process on which the plan depends.
struct StartSite {
  std::function<int()> count_gpus = [] { return 0; };  ///< called at most once, and only if needed
  int cores = 1;                                       ///< cores of this machine that this process may use
  bool root = false;
};

struct SelfStart {
  std::vector<std::string> arguments;  ///< launcher and its options; then come the program and its arguments
  Environment variables{};             ///< additional variables for the launcher
  std::string note{};                  ///< permissions that nobody requested, with reasons; or empty
  bool here = false;                   ///< the launcher's children are the ranks
};

/// Returns the ranks of each node that `devices` gives, for a rank in Lightning's form without LOCAL_WORLD_SIZE.
/// Lightning does not set this variable: its own `devices` is this number. Empty for any other process, and when
/// `devices` gives no number ("auto", "gpu", "cpu"). run_program() makes the number this process's LOCAL_WORLD_SIZE.
[[nodiscard]] std::optional<int> missing_local_size(const DeviceRequest& devices, const Environment& environment);

/// Returns the launcher's command line. Empty when this process is to be the only rank or is already one of several.
///
/// Ranks per node: cpu:4 means four, "3" three, usable:2 two, a list one per entry; gpu and auto mean one per GPU (in a
/// batch job SLURM_GPUS_ON_NODE, when it is set). The launcher is srun inside a SLURM allocation, unless a host file is
/// given; otherwise Open MPI's mpirun. Both are told not to bind ranks to single cores, because a rank computes with
/// several threads. mpirun may run as root when this process does (unless the environment already says so), and may
/// start more ranks than cores.
///
/// UsageError for GPUs on only this machine when it has none; for nodes below 0; for more than 2^20 ranks in all or, on
/// only this machine, 64 per core; for several nodes without a host file or an allocation; for a host file with srun;
/// for srun outside of an allocation; for Backend::gloo without a meeting place; for an invalid RestartPolicy; and when
/// this process was already started in this way and still is alone.
[[nodiscard]] std::optional<SelfStart> plan_self_start(const RanksRequest& request, const Environment& environment,
                                                       const StartSite& site);

/// Runs this program again under the launcher, if it needs one, waits for it and returns its exit code, 128 + n when
/// signal n ended it. Empty when this process is to continue as a rank. Call it before CUDA, MPI or a thread exists.
/// `request` reads the command line; it is called only when no launcher started this process. When `request` returns
/// nothing (--help) or throws, nothing is started, and this process continues as a rank and reports the error.
///
/// While it waits, it forwards SIGUSR1 and SIGUSR2. SIGTERM, SIGINT and SIGHUP reach the ranks as SIGUSR1, to which
/// training reacts with a checkpoint: mpirun itself would kill the ranks soon after SIGTERM. A second such signal, more
/// than a second later, goes to the launcher as SIGTERM. The launcher leads its own process group, so that Ctrl-C also
/// reaches it only through this process. Ctrl-Z (SIGTSTP) stops the ranks too, under mpirun, and SIGCONT (fg) continues
/// them.
///
/// A launcher on only this machine that is stopped, or has no living rank, for RanksRequest::watchdog_s (at least 5 s)
/// is ended with code 76 and a line of text; after a request to stop, this takes 10 s.
///
/// mpirun's own message about a rank that ended with a code of lockstep's is not printed.
///
/// With RestartPolicy::most it starts the ranks again, with a line on standard error, unless they finished (0), had bad
/// input (2), or were stopped by a signal (75, or a signal that this process forwarded). Then a program that needs no
/// launcher runs in its own process too. Ranks see Launch::attempt. Each start counts the GPUs again ("gpu", "auto"),
/// so a restart takes the GPUs that remain. UsageError when the launcher is not installed, the host file cannot be
/// read, or this build has no MPI.
[[nodiscard]] std::optional<int> self_start(int argc, char** argv,
                                            const std::function<std::optional<RanksRequest>()>& request);

/// As run_program() (session.hpp), for a program that starts its own ranks. `watchdog_s`, if set, reads the seconds of
/// the session's watchdog from the command line, on each rank.
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                const std::function<std::optional<RanksRequest>()>& request,
                const std::function<double()>& watchdog_s = {}) noexcept;

/// Checks that the ranks match the request. Collective. UsageError, once, when the number of nodes differs from
/// request.nodes, or when a host file or restarts are requested although the program did not start its ranks.
void require_ranks_as_requested(Session& session, const RanksRequest& request);

}  // namespace lockstep::comm
