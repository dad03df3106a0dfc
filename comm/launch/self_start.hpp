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

/// Lets a program that was started by hand start the ranks that its --devices option asks for: `train_resnet --devices
/// cpu:4` runs itself under mpirun (docs/launch.md). For programs of this project; a library never does this.
namespace lockstep::comm {

enum class Launcher : unsigned char { automatic, mpirun, srun, none };
/// "auto", "mpirun", "srun", "none". UsageError otherwise.
[[nodiscard]] Launcher parse_launcher(std::string_view text);

/// Whether the ranks are started again when they break.
struct RestartPolicy {
  int most = 0;  ///< restarts; 0: none
  /// After a start without progress the next has fewer ranks, by one or by what `fits`, but at least so many; 0: always
  /// as many. For cpu:N and usable:N on one node.
  int min_ranks = 0;
  /// Whether the job can have so many ranks: with min_ranks the next number that it can have is taken. Not given: any.
  std::function<bool(int ranks)> fits{};
  /// A text that changes when the ranks have kept something that a restart goes on from. Needed with min_ranks.
  std::function<std::string()> progress{};
  /// Called once, before the first start, with Attempt::job. What it returns lives until there is no further start.
  std::function<std::shared_ptr<void>(const std::string& job)> hold{};
};

/// What the command line asks for.
struct RanksRequest {
  DeviceRequest devices{};
  int nodes = 0;           ///< 0: one, or as many as the host file or the allocation has
  std::string hostfile{};  ///< mpirun's --hostfile; or empty
  Launcher launcher = Launcher::automatic;
  Backend backend = Backend::automatic;  ///< how the ranks meet, whoever starts them
  RestartPolicy restart{};
  double watchdog_s = 300;    ///< so long a launcher may be stopped, or have no living rank; 0: for ever
  bool prints_result = true;  ///< output that cannot be written is a failure (3); false: the run goes on, as it says
};

/// What the plan depends on, beside request and environment.
struct StartSite {
  std::function<int()> count_gpus = [] { return 0; };  ///< called at most once, and only when the number matters
  int cores = 1;                                       ///< of this machine that this process may use
  bool root = false;
};

struct SelfStart {
  std::vector<std::string> arguments;  ///< the launcher and its options; the program and its arguments follow
  Environment variables{};             ///< additional variables for the launcher
  std::string note{};                  ///< what was allowed without a request, and why; or empty
  bool here = false;                   ///< the launcher's children are the ranks
};

/// The ranks of each node that `devices` names, for a rank in Lightning's form without LOCAL_WORLD_SIZE, which
/// Lightning does not set: its own `devices` is this number. Empty for any other process, and where `devices` names
/// none ("auto", "gpu", "cpu"). run_program() makes it this process's LOCAL_WORLD_SIZE.
[[nodiscard]] std::optional<int> missing_local_size(const DeviceRequest& devices, const Environment& environment);

/// The launcher's command line. Empty when this process is to be the only rank or is already one of several.
///
/// Ranks per node: cpu:4 means four, "3" three, usable:2 two, a list one per entry; gpu and auto mean one per GPU (in a
/// batch job SLURM_GPUS_ON_NODE, when it is set). The launcher is srun inside a SLURM allocation, unless a host file is
/// given; otherwise Open MPI's mpirun. Both are told not to bind ranks to single cores, since a rank computes with
/// several threads. mpirun is allowed to run as root when this process does (unless the environment already says so),
/// and to start more ranks than cores.
///
/// UsageError for GPUs of this machine alone where it has none; for nodes below 0; for more than 2^20 ranks in all or,
/// on this machine alone, 64 per core; for several nodes without a host file or an allocation; for a host file with
/// srun; for srun outside of an allocation; for Backend::gloo without a meeting place; for a RestartPolicy that cannot
/// be; and when this process was already started so and still finds itself alone.
[[nodiscard]] std::optional<SelfStart> plan_self_start(const RanksRequest& request, const Environment& environment,
                                                       const StartSite& site);

/// Runs this program again under the launcher, if it needs one, waits for it and returns its exit code, 128 + n when
/// signal n ended it. Empty when this process is to continue as a rank. Call it before CUDA, MPI or a thread exists.
/// `request` reads the command line; it is called only when no launcher started this process. When it returns nothing
/// (--help) or throws, nothing is started, and this process continues as a rank and reports the error.
///
/// While it waits, it passes SIGUSR1 and SIGUSR2 on. SIGTERM, SIGINT and SIGHUP reach the ranks as SIGUSR1, which
/// training answers with a checkpoint: mpirun itself would kill the ranks soon after SIGTERM. A second such signal,
/// more than a second later, goes to the launcher as SIGTERM. The launcher leads a process group of its own, so that
/// Ctrl-C takes the same way. Ctrl-Z (SIGTSTP) stops the ranks too, under mpirun, and SIGCONT (fg) continues them.
///
/// A launcher that is stopped, or that has no living rank on this machine alone, for RanksRequest::watchdog_s, but at
/// least 5 s, is ended with 76, and a line says so; once a stop was asked for, after 10 s.
///
/// What mpirun itself says of a rank that ended with a code of lockstep's is left out.
///
/// With RestartPolicy::most it starts the ranks again (a line on standard error says so) when they end in any other way
/// than finished (0), by bad input (2), or stopped by a signal (75, or one that this process passed on); then a program
/// that needs no launcher runs in a process of its own too. Ranks see Launch::attempt. Between GPUs it counts again
/// ("gpu", "auto"), so a restart takes those that are left. UsageError when the launcher is
/// not installed, the host file cannot be read, or this build has no MPI.
[[nodiscard]] std::optional<int> self_start(int argc, char** argv,
                                            const std::function<std::optional<RanksRequest>()>& request);

/// run_program() (session.hpp) for a program that starts its own ranks. `watchdog_s`, if it is given, reads the command
/// line for the session's watchdog, on each rank.
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                const std::function<std::optional<RanksRequest>()>& request,
                const std::function<double()>& watchdog_s = {}) noexcept;

/// Checks that the ranks are what was asked for. Collective. UsageError, once, when the number of nodes differs from
/// request.nodes, or when a host file or restarts are asked for although the program did not start its ranks.
void require_ranks_as_requested(Session& session, const RanksRequest& request);

}  // namespace lockstep::comm
