#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

/// A program that was started by hand starts the ranks that its --devices ask for: `train_resnet --devices cpu:4` runs
/// itself under mpirun (docs/launch.md). For programs of ours, like Session; a library never does this.
namespace lockstep::comm {

enum class Launcher : unsigned char { automatic, mpirun, srun, none };
/// "auto", "mpirun", "srun", "none". UsageError otherwise.
[[nodiscard]] Launcher parse_launcher(std::string_view text);

/// What a program was asked for.
struct RanksRequest {
  DeviceRequest devices{};
  int nodes = 0;           ///< 0: one, or as many as the host file or the allocation has
  std::string hostfile{};  ///< mpirun's --hostfile; or empty
  Launcher launcher = Launcher::automatic;
};

/// What the plan depends on beside request and environment.
struct StartSite {
  std::function<int()> count_gpus = [] { return 0; };  ///< asked at most once, and only when the number matters
  int cores = 1;                                       ///< of this machine that this process may use
  bool root = false;
};

struct SelfStart {
  std::vector<std::string> arguments;  ///< the launcher and its options; the program and its own follow
  Environment variables{};             ///< that the launcher gets besides those that are there
  std::string note{};                  ///< what was allowed without being asked for, and why; or empty
};

/// The launcher's command line; nothing when this process is to be the only rank, or is one of several already.
///
/// Ranks on a node: cpu:4 four, "3" three, usable:2 two, a list one each; gpu and auto as many as there are GPUs (in a
/// batch job SLURM_GPUS_ON_NODE, when it is set). srun inside a SLURM allocation, unless a host file is given; else
/// mpirun (Open MPI's). Both are told not to bind ranks to single cores, since a rank computes with several threads.
/// mpirun is allowed to run as root where this process does (unless the environment says so already), and to start more
/// ranks than cores.
///
/// UsageError: nodes below 0; more than 2^20 ranks in all, or, on this machine alone, 64 a core; several nodes, and
/// neither a host file nor an allocation; a host file for srun; srun outside of an allocation; a process that was
/// started so before and still finds itself alone.
[[nodiscard]] std::optional<SelfStart> plan_self_start(const RanksRequest& request, const Environment& environment,
                                                       const StartSite& site);

/// Runs this program again with the launcher, if there is reason to, waits for it and returns its exit code, 128 + n
/// when a signal n ended it. Nothing when this process shall go on as a rank; call it before CUDA, MPI or a thread
/// exists. `request` reads the command line, is called only when no launcher started this process, and may return
/// nothing (--help) or throw: then nothing is started, and the rank that this process becomes says what is wrong.
///
/// While it waits, SIGUSR1 and SIGUSR2 are passed on. SIGTERM, SIGINT and SIGHUP reach the ranks as SIGUSR1, which
/// training answers with a checkpoint: mpirun itself would kill the ranks soon after SIGTERM. A second one of these
/// more than a second later goes to the launcher as SIGTERM. The launcher leads a process group of its own, so that
/// Ctrl-C takes the same way. UsageError when the launcher is not installed, the host file cannot be read, or this
/// build has no MPI.
[[nodiscard]] std::optional<int> self_start(int argc, char** argv,
                                            const std::function<std::optional<RanksRequest>()>& request);

/// run_program() (session.hpp) of a program that starts its own ranks.
int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                const std::function<std::optional<RanksRequest>()>& request) noexcept;

/// What came up is what was asked for. Collective. UsageError, once, when the ranks are on another number of nodes than
/// request.nodes, or when there is a host file although the program did not start its ranks.
void require_ranks_as_requested(Session& session, const RanksRequest& request);

}  // namespace lockstep::comm
