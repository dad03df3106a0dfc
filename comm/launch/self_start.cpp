#include <lockstep/comm/launch/self_start.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <variant>

#include <unistd.h>

#include <lockstep/comm/launch/detail/run_launcher.hpp>
#include <lockstep/comm/launch/run_alone.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/machine/processors.hpp>

namespace lockstep::comm {

namespace {

/// Beginnings of the names of variables that mpirun must also set for ranks on other nodes.
constexpr std::array kForAllNodes{"OMP_",
                                  "GOMP_",
                                  "CUDA_",
                                  "NCCL_",
                                  "UCX_",
                                  "LD_LIBRARY_PATH",
                                  "LOCKSTEP_CLAIM_FOLDER",
                                  "LOCKSTEP_HOST_ALL_REDUCE",
                                  "MASTER_",
                                  "LOCKSTEP_PORT",
                                  "LOCKSTEP_MEET_SECONDS"};
/// Most ranks for each core. Without this limit, a mistyped number could keep the machine busy for an hour.
constexpr int kMostRanksPerCore = 64;

bool has(const Environment& environment, std::string_view name) {
  return !value_of(environment, name).empty();
}

/// Returns the number at the end of the value of the variable `name` ("4", "a100:4"); 0 if there is none.
int count_in(const Environment& environment, std::string_view name) {
  const std::string_view text = value_of(environment, name);
  const std::size_t colon = text.rfind(':');
  const std::string_view digits = text.substr(colon == std::string_view::npos ? 0 : colon + 1);
  return std::max(number_in<int>(digits).value_or(0), 0);
}

/// Returns the number of ranks that the request wants on each node; 0 if the request gives no number.
int ranks_of_node(const DeviceRequest& request, const Environment& environment, const StartSite& site) {
  const DeviceRequest::Form& form = request.form();
  if (const auto* host = std::get_if<DeviceRequest::Host>(&form)) {
    return host->ranks;
  }
  if (const auto* first = std::get_if<DeviceRequest::FirstGpus>(&form)) {
    return first->count;
  }
  if (const auto* list = std::get_if<DeviceRequest::Gpus>(&form)) {
    return static_cast<int>(list->named.size());
  }
  if (const auto* usable = std::get_if<DeviceRequest::Usable>(&form)) {
    return std::max(0, usable->count);  // count is -1 for "all usable GPUs", which only the ranks count
  }
  for (const char* name : {"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"}) {
    if (const int count = count_in(environment, name); count > 0) {
      return count;
    }
  }
  return site.count_gpus();
}

template <class... Parts>
void require_start(bool ok, const Parts&... parts) {
  require<UsageError>(ok, "launch: ", parts...);
}

int in_all(int ranks, int nodes) {
  require_start(std::int64_t{ranks} * nodes <= 1 << 20, ranks, " ranks on each of ", counted(nodes, "node"),
                ", expected at most ", 1 << 20, " in all");
  return ranks * nodes;
}

void add_note(SelfStart& start, const std::string& note) {
  start.note += (start.note.empty() ? "" : "; ") + note;
}

SelfStart srun(const RanksRequest& request, const Environment& environment, int ranks, bool gpus) {
  require_start(request.hostfile.empty(), "--hostfile is for mpirun, not for srun, which starts ranks on the nodes of ",
                "its allocation");
  SelfStart start{{"srun", concat("--ntasks-per-node=", ranks)}};
  const int nodes = request.nodes > 0 ? request.nodes : std::max(1, count_in(environment, "SLURM_NNODES"));
  start.arguments.push_back(concat("--nodes=", nodes));
  start.arguments.push_back(concat("--ntasks=", in_all(ranks, nodes)));
  if (!has(environment, "SLURM_MPI_TYPE")) {
    start.arguments.emplace_back("--mpi=pmix");
  }
  if (nodes > 1 && !has(environment, "SLURM_PMIX_FENCE")) {
    start.variables["SLURM_PMIX_FENCE"] = "ring";  // with the default, Open MPI 4 crashes now and then (docs/launch.md)
  }
  const int processors = count_in(environment, "SLURM_CPUS_ON_NODE");
  if (const int each = count_in(environment, "SLURM_CPUS_PER_TASK"); each > 0) {
    // srun ignores SLURM_CPUS_PER_TASK, so its value becomes an option. The value is reduced if the job was made for
    // fewer tasks on a node than ranks start now.
    const int share = processors > 0 ? std::min(each, std::max(1, processors / ranks)) : each;
    start.arguments.push_back(concat("--cpus-per-task=", share));
  } else {
    start.arguments.emplace_back("--cpu-bind=none");
  }
  if (gpus) {
    start.arguments.emplace_back("--gpu-bind=none");  // all ranks of a node see all GPUs of the node
  }
  if (processors > 0 && ranks > processors) {
    start.arguments.emplace_back("--overcommit");
    add_note(start, concat("--overcommit for ", ranks, " ranks on ", processors, " processors of a node"));
  }
  start.arguments.emplace_back("--wait=60");  // seconds after the first rank's end until srun ends all other ranks
  return start;
}

SelfStart mpirun(const RanksRequest& request, const Environment& environment, const StartSite& site, int ranks,
                 bool managed) {
  const bool here = request.nodes <= 1 && request.hostfile.empty() && !managed;
  require_start(!here || ranks <= kMostRanksPerCore * site.cores, "devices '", request.devices.text(), "' asks for ",
                ranks, " ranks, expected at most ", kMostRanksPerCore, " for each core that this process may use (",
                site.cores, "); start more by mpirun");
  SelfStart start;
  std::vector<std::string>& arguments = start.arguments;
  arguments.emplace_back("mpirun");
  start.here = here;
  if (site.root &&
      !(has(environment, "OMPI_ALLOW_RUN_AS_ROOT") && has(environment, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"))) {
    arguments.emplace_back("--allow-run-as-root");
    add_note(start, "--allow-run-as-root since this process is root's");
  }
  if (here) {
    if (!has(environment, "OMPI_MCA_plm")) {
      // With ranks on this host only, Open MPI 4 need not search for ssh, and this setting prevents the search. Open
      // MPI 5 does not search; it ignores the variable, but would complain about the command-line option.
      start.variables["OMPI_MCA_plm"] = "isolated";
    }
    arguments.insert(arguments.end(), {"-np", std::to_string(in_all(ranks, 1))});
  } else {
    if (!request.hostfile.empty()) {
      arguments.insert(arguments.end(), {"--hostfile", request.hostfile});
    }
    if (request.nodes > 0) {  // without -np, mpirun starts ranks on all nodes of the host file or allocation
      arguments.insert(arguments.end(), {"-np", std::to_string(in_all(ranks, request.nodes))});
    }
    arguments.insert(arguments.end(), {"--map-by", concat("ppr:", ranks, ":node")});
    // To ranks on other nodes, mpirun passes only Open MPI's own variables, and those that -x names.
    arguments.insert(arguments.end(), {"-x", kStartedWith});
    if (request.restart.most > 0) {
      arguments.insert(arguments.end(), {"-x", kAttempt});
    }
    for (const auto& [name, value] : environment) {
      const auto begins = [&n = name](const char* prefix) { return n.starts_with(prefix); };
      if (std::any_of(kForAllNodes.begin(), kForAllNodes.end(), begins)) {
        arguments.insert(arguments.end(), {"-x", name});
      }
    }
  }
  if (ranks > site.cores && !has(environment, "OMPI_MCA_rmaps_base_oversubscribe")) {
    arguments.emplace_back("--oversubscribe");
    add_note(start, concat("--oversubscribe for ", ranks, " ranks on ", counted(site.cores, "core")));
  }
  if (!has(environment, "OMPI_MCA_hwloc_base_binding_policy")) {
    arguments.insert(arguments.end(), {"--bind-to", "none"});
  }
  return start;
}

void require_policy(const RanksRequest& request) {
  const RestartPolicy& policy = request.restart;
  require_start(policy.most >= 0, "--max-restarts is ", policy.most, ", expected at least 0");
  require_start(policy.min_ranks >= 0, "--min-ranks is ", policy.min_ranks, ", expected at least 0");
  if (policy.min_ranks == 0) {
    return;
  }
  require_start(policy.most > 0, "--min-ranks is ", policy.min_ranks, ", which says how restarts go on: expected ",
                "--max-restarts above 0");
  const auto* host = std::get_if<DeviceRequest::Host>(&request.devices.form());
  const auto* usable = std::get_if<DeviceRequest::Usable>(&request.devices.form());
  const int ranks = host != nullptr ? host->ranks : usable != nullptr ? usable->count : 0;
  require_start(ranks > 0 && request.nodes <= 1 && request.hostfile.empty(), "--min-ranks is ", policy.min_ranks,
                " with devices '", request.devices.text(), "', expected cpu:N or usable:N on one node");
  require_start(policy.min_ranks <= ranks, "--min-ranks is ", policy.min_ranks, ", expected at most the ", ranks,
                " ranks of devices '", request.devices.text(), "'");
}

}  // namespace

Launcher parse_launcher(std::string_view text) {
  constexpr std::array<std::string_view, 4> kNames{"auto", "mpirun", "srun", "none"};  // in the order of enum Launcher
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  require<UsageError>(found != kNames.end(), "--launcher is '", text, "', expected auto, mpirun, srun or none");
  return static_cast<Launcher>(found - kNames.begin());
}

std::optional<int> missing_local_size(const DeviceRequest& devices, const Environment& environment) {
  if (!lacks_local_size(environment) || std::holds_alternative<DeviceRequest::Automatic>(devices.form()) ||
      std::holds_alternative<DeviceRequest::AllGpus>(devices.form())) {
    return std::nullopt;
  }
  const int ranks = ranks_of_node(devices, environment, {});
  return ranks > 0 ? std::optional(ranks) : std::nullopt;
}

std::optional<SelfStart> plan_self_start(const RanksRequest& request, const Environment& environment,
                                         const StartSite& site) {
  require_start(request.nodes >= 0, "--nodes is ", request.nodes, ", expected at least 0");
  require_policy(request);
  if (request.launcher == Launcher::none || detect_launch(environment).source != LaunchSource::single) {
    return std::nullopt;
  }
  const bool slurm = has(environment, "SLURM_JOB_ID");
  const bool managed = slurm || has(environment, "PBS_NODEFILE") || has(environment, "LSB_HOSTS");
  const bool on_host = std::holds_alternative<DeviceRequest::Host>(request.devices.form());
  const int wanted = ranks_of_node(request.devices, environment, site);
  const bool gpus = !on_host && wanted > 0;
  const bool nodes_wanted = request.nodes > 1 || !request.hostfile.empty();
  // A request for GPUs without a number of nodes uses all nodes of the allocation, with one rank for each GPU.
  const bool nodes_there = slurm && gpus && request.nodes == 0 && count_in(environment, "SLURM_NNODES") > 1;
  if (wanted <= 1 && !nodes_wanted && !nodes_there) {
    return std::nullopt;
  }
  if (const auto before = environment.find(std::string_view(kStartedWith)); before != environment.end()) {
    require_start(false, "this process was started with '", before->second,
                  "' and sees no variables of it: that launcher belongs to no MPI that is known here; start the ranks "
                  "by hand");
  }
  require_start(
      request.nodes <= 1 || !request.hostfile.empty() || managed || has(environment, "OMPI_MCA_orte_default_hostfile"),
      "--nodes is ", request.nodes, ", and nothing names them: expected --hostfile FILE, or an allocation");
  require_start(request.launcher != Launcher::srun || slurm,
                "--launcher is srun, but there is no allocation of SLURM "
                "(SLURM_JOB_ID); expected to be run by sbatch or salloc");
  if (request.backend == Backend::gloo) {
    try {
      (void)meeting_place(environment);
    } catch (UsageError& e) {
      e.annotate(concat("--backend is gloo, and devices '", request.devices.text(),
                        "' asks for several ranks, which this program starts with mpirun or srun"));
      throw;
    }
  }
  const int ranks = std::max(1, wanted);
  const bool counted = std::holds_alternative<DeviceRequest::Automatic>(request.devices.form()) ||
                       std::holds_alternative<DeviceRequest::AllGpus>(request.devices.form());
  // No check is needed if ranks_of_node() has counted this machine's GPUs (auto, gpu), or if ranks may run on other
  // machines.
  if (gpus && !counted && !nodes_wanted && !managed) {
    require_start(
        site.count_gpus() > 0, "devices '", request.devices.text(), "' asks for ", ranks,
        " GPUs, and this machine has none that can be used (lockstep-devices says why); expected cpu, or cpu:", ranks);
  }
  if (request.launcher == Launcher::srun ||
      (slurm && request.launcher == Launcher::automatic && request.hostfile.empty())) {
    return srun(request, environment, ranks, gpus);
  }
  return mpirun(request, environment, site, ranks, managed);
}

namespace {

/// Sets this process's variable LOCAL_WORLD_SIZE if it is missing and the command line gives the number.
void complete_environment(const RanksRequest& request) {
  const std::optional<int> ranks = missing_local_size(request.devices, process_environment());
  if (ranks) {
    ::setenv("LOCAL_WORLD_SIZE", concat(*ranks).c_str(), 0);
  }
}

/// Plans how to start the ranks on this machine, and checks the plan. Returns nullopt if this process is the only rank.
std::optional<SelfStart> plan_here(const RanksRequest& asked, const Environment& environment) {
  std::optional<SelfStart> start =
      plan_self_start(asked, environment,
                      {.count_gpus = [] { return detail::ask_in_a_child([] { return num_gpus(); }); },
                       .cores = std::max(1, count_cores(ProcessorSet::of_process())),
                       .root = ::geteuid() == 0});
  if (!start) {
    return std::nullopt;
  }
  if (!asked.hostfile.empty()) {
    const bool there = ::access(asked.hostfile.c_str(), R_OK) == 0;
    require_start(there, "--hostfile is '", asked.hostfile, "': ", std::strerror(errno),
                  "; expected a file with a node and its slots on each line");
  }
  const std::string& launcher = start->arguments.front();
  const std::string what = concat("devices '", asked.devices.text(), "' asks for several ranks: ");
  require_start(LOCKSTEP_HAS_MPI != 0, what, "this build has no MPI to start them with; build it with Open MPI");
  require_start(!detail::find_on_path(launcher).empty(), what, launcher, " is not on PATH",
                launcher == "mpirun" ? ": install it (Debian: openmpi-bin), start the ranks by hand, "
                                     : ": load SLURM's commands, take --launcher mpirun, ",
                "or one rank with --devices cpu");
  return start;
}

/// Runs the program once, under its launcher or (with an empty `start`) as a single rank. Waits for the end.
detail::LauncherEnd run_once(const SelfStart& start, const RanksRequest& asked, int argc, char** argv,
                             const Attempt& attempt) {
  constexpr double kLeast = 5;  // shortest limit in seconds: mpirun has no ranks for a moment at its start and end
  std::vector<std::string> command = start.arguments;
  command.insert(command.end(), argv, argv + argc);
  Environment variables = start.variables;
  if (!attempt.job.empty()) {
    variables[kAttempt] = attempt_text(attempt);
  }
  if (!start.arguments.empty()) {
    variables.emplace("OMPI_MCA_orte_forward_job_control", "1");  // makes mpirun forward SIGTSTP and SIGCONT
    std::string started_with = joined(start.arguments, " ") + (start.note.empty() ? "" : " (" + start.note + ")");
    for (const auto& [name, value] : start.variables) {
      started_with = concat(name, '=', value, ' ', started_with);
    }
    variables[kStartedWith] = started_with;
  }
  const double limit = asked.watchdog_s > 0 ? std::max(asked.watchdog_s, kLeast) : 0;
  const bool launcher = !start.arguments.empty();
  detail::LauncherEnd end = detail::run_launcher(
      command, variables, {.seconds = launcher ? limit : 0, .children = start.here, .output = launcher});
  if (end.code == exit_code::kFinished && end.output_lost && asked.prints_result) {
    end.code = exit_code::kFailure;
    end.stopped = true;  // prevents a restart
  }
  return end;
}

/// Returns true if the job is complete or was stopped, or if another start would end in the same way.
bool is_over(const detail::LauncherEnd& end) {
  constexpr int kCannotBeRun = 127;
  return end.stopped || end.code == exit_code::kFinished || end.code == exit_code::kBadInput ||
         end.code == exit_code::kStopped || end.code == kCannotBeRun;
}

/// Formats an exit code: "137 (signal 9)".
std::string code_text(int code) {
  return code > 128 ? concat(code, " (signal ", code - 128, ')') : concat(code);
}

/// Returns the exit code of this process, which waits for the job. If nothing has printed a reason, prints a line.
int last_code(const detail::LauncherEnd& end) {
  if (end.silent) {
    std::fprintf(stderr, "lockstep: error: the job ended with code %s; no rank and no launcher said why\n",
                 code_text(end.code).c_str());
  }
  return end.code;
}

/// Returns the request with the next number of ranks below `ranks` that the policy allows; `request` if there is none.
DeviceRequest fewer(const DeviceRequest& request, int ranks, const RestartPolicy& policy) {
  do {
    --ranks;
  } while (ranks >= policy.min_ranks && policy.fits && !policy.fits(ranks));
  if (ranks < policy.min_ranks) {
    return request;
  }
  const bool host = std::holds_alternative<DeviceRequest::Host>(request.form());
  return DeviceRequest::parse(concat(host ? "cpu:" : "usable:", ranks));
}

/// Starts the job again and again until is_over() returns true, or until no restart is left. Even a job of one rank
/// runs in a child process.
int supervise(RanksRequest asked, std::optional<SelfStart> start, const Environment& environment, int argc,
              char** argv) {
  const RestartPolicy policy = asked.restart;
  const auto begin = std::chrono::steady_clock::now();
  Attempt attempt{.job = concat(::getpid(), '-', std::chrono::system_clock::now().time_since_epoch().count())};
  const std::shared_ptr<void> held = policy.hold ? policy.hold(attempt.job) : nullptr;
  for (;;) {
    const std::string kept = policy.progress ? policy.progress() : "";
    const detail::LauncherEnd end = run_once(start.value_or(SelfStart()), asked, argc, argv, attempt);
    if (is_over(end) || attempt.number == policy.most) {
      return last_code(end);
    }
    const int ranks = ranks_of_node(asked.devices, environment, {});
    if (policy.min_ranks > 0 && ranks > policy.min_ranks && policy.progress() == kept) {
      asked.devices = fewer(asked.devices, ranks, policy);
      attempt.devices = asked.devices.text();
    }
    ++attempt.number;
    const auto passed = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    attempt.seconds = static_cast<int>(passed.count());
    const std::string of = attempt.devices.empty() ? "" : concat(" on ", attempt.devices);
    std::fprintf(stderr, "lockstep: the job ended with code %s: restart %d of %d%s\n", code_text(end.code).c_str(),
                 attempt.number, policy.most, of.c_str());
    start = plan_here(asked, environment);  // makes a new plan, because a GPU may have failed
  }
}

}  // namespace

std::optional<int> self_start(int argc, char** argv, const std::function<std::optional<RanksRequest>()>& request) {
  const Environment environment = process_environment();
  std::optional<RanksRequest> asked;
  try {
    const Launch launch = detect_launch(environment);
    if (launch.source != LaunchSource::single || (!launch.attempt.job.empty() && launch.started_with.empty())) {
      return std::nullopt;
    }
    asked = request();
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!asked) {
    return std::nullopt;
  }
  std::optional<SelfStart> start = plan_here(*asked, environment);
  if (asked->restart.most > 0 && asked->launcher != Launcher::none) {
    return supervise(std::move(*asked), std::move(start), environment, argc, argv);
  }
  return start ? std::optional(last_code(run_once(*start, *asked, argc, argv, {}))) : std::nullopt;
}

int run_program(int argc, char** argv, const std::function<int(Session&, int argc, char** argv)>& body,
                const std::function<std::optional<RanksRequest>()>& request,
                const std::function<double()>& watchdog_s) noexcept {
  std::optional<int> started;
  double seconds = 0;
  Backend backend = Backend::automatic;
  const int code = run_alone([&] {
    started = self_start(argc, argv, request);
    if (!started && watchdog_s) {
      seconds = watchdog_s();
    }
    if (!started) {
      try {
        const std::optional<RanksRequest> asked = request();
        backend = asked ? asked->backend : backend;
        if (asked) {
          complete_environment(*asked);
        }
      } catch (const Error&) {  // ignored, because `body` meets the same error and reports it
      }
    }
    return started.value_or(exit_code::kFinished);
  });
  return started || code != exit_code::kFinished ? code : run_program(argc, argv, body, seconds, backend);
}

void require_ranks_as_requested(Session& session, const RanksRequest& request) {
  session.agree([&] {
    require_start(request.nodes == 0 || request.nodes == session.nodes(), "--nodes is ", request.nodes,
                  ", but the ranks are on ", counted(session.nodes(), "node"));
    require_start(request.hostfile.empty() || !session.launch().started_with.empty(), "--hostfile is '",
                  request.hostfile, "', but this program did not start its ranks (", session.launch().description(),
                  "): the launcher takes the file");
    require_start(request.restart.most == 0 || !session.launch().attempt.job.empty(), "--max-restarts is ",
                  request.restart.most, ", but this program did not start its ranks (", session.launch().description(),
                  "): expected --devices with so many ranks, and no launcher");
  });
}

}  // namespace lockstep::comm
