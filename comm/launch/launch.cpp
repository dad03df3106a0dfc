#include <lockstep/comm/launch/launch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <vector>

#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::comm {

namespace {

/// Names of one launcher's environment variables. An empty name means that the launcher does not set such a variable.
struct Names {
  const char* who;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<Names, 3> kMpi{{
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH's launcher", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
}};
constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr std::array<const char*, 7> kTorchrunSet{"RANK",       "LOCAL_RANK",  "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                                  "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};
constexpr std::array<const char*, 4> kLightningSet{"LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

/// Texts for Launch::description(), in the order of LaunchSource.
constexpr std::array<std::string_view, 5> kStartedBy{"alone", "by srun", "as Lightning starts ranks", "by torchrun",
                                                     "by mpirun or mpiexec"};

bool lacks(const Environment& environment, std::string_view name) {
  return value_of(environment, name).empty();
}

template <std::size_t N>
bool has_all(const Environment& environment, const std::array<const char*, N>& names) {
  return std::none_of(names.begin(), names.end(), [&](const char* name) { return lacks(environment, name); });
}

/// Formats the variables of `names` that are set: "NAME=value, NAME=value".
std::string shown(const Environment& environment, const std::vector<const char*>& names) {
  std::string text;
  for (const char* name : names) {
    if (!lacks(environment, name)) {
      text += concat(text.empty() ? "" : ", ", name, "=", value_of(environment, name));
    }
  }
  return text;
}

template <class... Parts>
void require_launch(bool ok, const Parts&... parts) {
  require<UsageError>(ok, "launch: ", parts...);
}

/// Reads a number from the variable `name`; nullopt if it is not set. Throws UsageError for an invalid number.
std::optional<int> number(const Environment& environment, const char* name) {
  if (lacks(environment, name)) {
    return std::nullopt;
  }
  const auto value = number_in<std::int64_t>(value_of(environment, name));
  require_launch(value && *value >= 0 && *value < (std::int64_t{1} << 31), name, "=", value_of(environment, name),
                 ", expected a whole number from 0 to 2147483647");
  return static_cast<int>(*value);
}

/// Requires 0 <= rank < size, and the same for local rank and node if they are given. The error shows `origin`.
void check_place(const Launch& launch) {
  require_launch(launch.size >= 1 && launch.rank >= 0 && launch.rank < launch.size, launch.origin, ": rank ",
                 launch.rank, " of ", launch.size, ", expected 0 <= rank < size");
  constexpr int kMostRanks = 1 << 20;  // self_start() allows no more ranks, either
  require_launch(launch.size <= kMostRanks, launch.origin, ": ", launch.size, " ranks, expected at most ", kMostRanks);
  if (launch.local_rank && launch.local_size) {
    require_launch(
        *launch.local_rank >= 0 && *launch.local_rank < *launch.local_size && *launch.local_size <= launch.size,
        launch.origin, ": local rank ", *launch.local_rank, " of ", *launch.local_size, " on this node, of ",
        launch.size, " in all, expected 0 <= local rank < local size <= size");
  }
  if (launch.node && launch.nodes) {
    require_launch(*launch.node < *launch.nodes && *launch.nodes <= launch.size, launch.origin, ": node ", *launch.node,
                   " of ", *launch.nodes, ", of ", launch.size, " ranks, expected 0 <= node < nodes <= size");
  }
}

/// Reads rank and size from the variables `names`; nullopt if neither variable is set.
std::optional<Launch> read(const Environment& environment, const Names& names, LaunchSource source) {
  Launch launch{.source = source,
                .origin = shown(environment, {names.rank, names.size, names.local_rank, names.local_size})};
  const std::optional<int> rank = number(environment, names.rank);
  const std::optional<int> size = number(environment, names.size);
  if (!rank && !size) {
    return std::nullopt;
  }
  require_launch(rank && size, launch.origin, " without ", rank ? names.size : names.rank, ": ", names.who,
                 " sets both; start the program with it, or unset what is left of it");
  launch.rank = *rank;
  launch.size = *size;
  launch.local_rank = number(environment, names.local_rank);
  launch.local_size = number(environment, names.local_size);
  check_place(launch);
  return launch;
}

/// Returns true if this process belongs to a job step of srun. SLURM_STEP_ID is then a small number. In batch scripts
/// and shells, it is a reserved number or not set.
bool in_step(const Environment& environment) {
  const auto step = number_in<std::int64_t>(value_of(environment, "SLURM_STEP_ID"));
  return step && *step >= 0 && *step < 0xffffff00;
}

std::optional<Launch> read_slurm(const Environment& environment) {
  if (!in_step(environment)) {
    return std::nullopt;
  }
  const bool own = !lacks(environment, "SLURM_STEP_NUM_TASKS");
  const Names names{"srun", "SLURM_PROCID", own ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID", ""};
  std::optional<Launch> launch = read(environment, names, LaunchSource::slurm);
  if (launch) {
    const char* nodes = lacks(environment, "SLURM_STEP_NUM_NODES") ? "SLURM_NNODES" : "SLURM_STEP_NUM_NODES";
    launch->node = number(environment, "SLURM_NODEID");
    launch->nodes = number(environment, nodes);
    launch->origin += ", " + shown(environment, {"SLURM_NODEID", nodes, "SLURM_STEP_ID"});
    check_place(*launch);
    const auto asked = number_in<std::int64_t>(value_of(environment, "SLURM_NTASKS_PER_NODE"));
    if (asked && *asked < (std::int64_t{1} << 31) && *asked * launch->nodes.value_or(1) > launch->size) {
      launch->note =
          concat("the step has ", counted(launch->size, "task"), " on ", counted(launch->nodes.value_or(1), "node"),
                 ", fewer than the job's SLURM_NTASKS_PER_NODE=", *asked);
    }
  }
  return launch;
}

/// Reads torchrun's variables; nullopt unless all of them are set.
std::optional<Launch> read_torchrun(const Environment& environment) {
  if (!has_all(environment, kTorchrunSet)) {
    return std::nullopt;
  }
  std::optional<Launch> launch = read(environment, kTorchrun, LaunchSource::torchrun);
  launch->node = number(environment, "GROUP_RANK");
  return launch;
}

bool is_lightning(const Environment& environment) noexcept {
  return lacks(environment, "RANK") && has_all(environment, kLightningSet);
}

/// Reads the variables that PyTorch Lightning sets for a rank (detect_launch()); nullopt if they are not set.
std::optional<Launch> read_lightning(const Environment& environment) {
  if (!is_lightning(environment)) {
    return std::nullopt;
  }
  const char* node = lacks(environment, "NODE_RANK") ? "GROUP_RANK" : "NODE_RANK";
  Launch launch{.source = LaunchSource::lightning,
                .origin = shown(environment, {node, "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"})};
  launch.size = number(environment, "WORLD_SIZE").value_or(1);
  launch.local_rank = number(environment, "LOCAL_RANK");
  launch.local_size = number(environment, "LOCAL_WORLD_SIZE");
  launch.node = number(environment, node).value_or(0);
  require_launch(
      launch.local_size || *launch.node == 0, launch.origin,
      " without RANK and LOCAL_WORLD_SIZE: expected --devices with the number of ranks on each node (cpu:4, 4), or one "
      "of these variables, the number of this rank or that of ranks on each node");
  const std::int64_t rank = std::int64_t{*launch.node} * launch.local_size.value_or(0) + launch.local_rank.value_or(0);
  require_launch(rank < launch.size, launch.origin, ": rank ", rank, " of ", launch.size,
                 ", expected NODE_RANK * LOCAL_WORLD_SIZE + LOCAL_RANK < WORLD_SIZE");
  launch.rank = static_cast<int>(rank);
  check_place(launch);
  return launch;
}

void refuse_part_of_torchrun(const Environment& environment) {
  // MASTER_ADDR and MASTER_PORT, alone or with GROUP_RANK, do not make this process a rank, because scripts set these
  // variables for many programs.
  const bool some =
      !shown(environment, {kTorchrun.rank, kTorchrun.size, kTorchrun.local_rank, kTorchrun.local_size}).empty();
  std::string missing;
  for (const char* name : kTorchrunSet) {
    if (lacks(environment, name)) {
      missing += concat(missing.empty() ? "" : ", ", name);
    }
  }
  require_launch(!some || missing.empty(), shown(environment, {kTorchrunSet.begin(), kTorchrunSet.end()}), " without ",
                 missing, ": torchrun sets all of these; unset them, or start the ranks with mpirun");
}

void require_agree(const Launch& first, const Launch& second) {
  require_launch(first.rank == second.rank && first.size == second.size, "two launchers disagree: ", first.origin,
                 " (rank ", first.rank, " of ", first.size, ") and ", second.origin, " (rank ", second.rank, " of ",
                 second.size, "); unset the variables of one");
}

/// Requires that RANK and WORLD_SIZE agree with the launch, as far as they are set.
void require_agree_with_torchrun(const Launch& launch, const Environment& environment) {
  const int rank = number(environment, kTorchrun.rank).value_or(launch.rank);
  const int size = number(environment, kTorchrun.size).value_or(launch.size);
  require_launch(rank == launch.rank && size == launch.size, launch.origin, " (rank ", launch.rank, " of ", launch.size,
                 ") and ", shown(environment, {kTorchrun.rank, kTorchrun.size}), " disagree; unset the latter");
}

Launch place(const Environment& environment) {
  std::optional<Launch> mpi;
  for (const Names& names : kMpi) {
    // On nodes other than its own, mpirun starts helper processes through srun. A rank on such a node inherits the PMI
    // variables of its helper, so these variables are not read.
    const bool of_helpers = mpi && in_step(environment);
    if (const std::optional<Launch> found = of_helpers ? std::nullopt : read(environment, names, LaunchSource::mpi)) {
      if (mpi) {
        require_agree(*mpi, *found);
      } else {
        mpi = found;
      }
    }
  }
  if (mpi) {
    require_agree_with_torchrun(*mpi, environment);
    return *mpi;
  }
  if (const std::optional<Launch> torchrun = read_torchrun(environment)) {
    return *torchrun;
  }
  if (const std::optional<Launch> lightning = in_step(environment) ? std::nullopt : read_lightning(environment)) {
    return *lightning;
  }
  if (const std::optional<Launch> slurm = read_slurm(environment)) {
    require_agree_with_torchrun(*slurm, environment);
    return *slurm;
  }
  refuse_part_of_torchrun(environment);

  Launch single;
  if (!lacks(environment, "SLURM_JOB_ID") && number(environment, "SLURM_NTASKS").value_or(1) > 1) {
    single.note = concat(shown(environment, {"SLURM_NTASKS"}),
                         ", but this process is no task of a step: srun --mpi=pmix or mpirun starts one rank a task");
  }
  return single;
}

Attempt parse_attempt(const std::string& text) {
  const auto count = [](const std::string& word) { return number_in<int>(word).value_or(-1); };
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ' ');) {
    words.push_back(word);
  }
  const bool sized = words.size() == 3 || words.size() == 4;
  Attempt attempt;
  if (sized) {
    attempt = {.job = words[0],
               .number = count(words[1]),
               .devices = words[2] == "-" ? "" : words[2],
               .seconds = words.size() == 4 ? count(words[3]) : 0};
  }
  require<UsageError>(sized && !attempt.job.empty() && attempt.number >= 0 && !words[2].empty() && attempt.seconds >= 0,
                      kAttempt, " is '", text, "', expected JOB NUMBER DEVICES [SECONDS]");
  return attempt;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

std::string_view value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

Launch detect_launch(const Environment& environment) {
  Launch launch = place(environment);
  launch.started_with = value_of(environment, kStartedWith);
  if (!lacks(environment, kAttempt)) {
    launch.attempt = parse_attempt(std::string(value_of(environment, kAttempt)));
  }
  return launch;
}

bool lacks_local_size(const Environment& environment) noexcept {
  return is_lightning(environment) && lacks(environment, "LOCAL_WORLD_SIZE");
}

std::string attempt_text(const Attempt& attempt) {
  return concat(attempt.job, ' ', attempt.number, ' ', attempt.devices.empty() ? "-" : attempt.devices, ' ',
                attempt.seconds);
}

std::string Launch::description() const {
  const std::string by(kStartedBy[static_cast<std::size_t>(source)]);
  const std::string how = started_with.empty() ? by : "by itself: " + started_with;
  const std::string again = attempt.number > 0 ? concat("; restart ", attempt.number) : "";
  return concat("started ", how, again, note.empty() ? "" : "; ", note);
}
Launch confirm_launch(const Launch& launch, const Environment& environment, int rank, int size,
                      std::string_view library) {
  const std::string here = concat("MPI reports ", counted(size, "rank"), " (", library, ")");
  switch (launch.source) {
    case LaunchSource::torchrun:
    case LaunchSource::lightning:
      require_launch(launch.size == size, launch.origin, " from ",
                     launch.source == LaunchSource::torchrun ? "torchrun" : "Lightning's variables", ", but ", here,
                     ": such ranks meet by --backend gloo, in a build with gloo (libgloo-dev); or start them "
                     "with mpirun -np ",
                     launch.size, " or srun --mpi=pmix");
      break;
    case LaunchSource::slurm:
      require_launch(launch.size <= size, launch.origin, ", but ", here,
                     ": start the step with srun --mpi=pmix, with a build that has MPI (srun --mpi=list shows what "
                     "SLURM can)");
      break;
    case LaunchSource::mpi:
      require_launch(launch.size <= size, launch.origin, " says ", launch.size, " ranks, but ", here,
                     ": the launcher belongs to another MPI, or this build has none");
      break;
    case LaunchSource::single:
      break;
  }
  if (size == launch.size && rank == launch.rank) {
    return launch;
  }
  Launch confirmed{.source = LaunchSource::mpi, .rank = rank, .size = size, .origin = std::string(library)};
  confirmed.started_with = launch.started_with;
  require_agree_with_torchrun(confirmed, environment);
  return confirmed;
}

Backend parse_backend(std::string_view text) {
  const bool automatic = text == "auto" || text == "nccl";
  require<UsageError>(automatic || text == "mpi" || text == "gloo", "--backend is '", text,
                      "', expected auto, mpi, gloo or nccl");
  return automatic ? Backend::automatic : text == "mpi" ? Backend::mpi : Backend::gloo;
}

bool meet_by_gloo(const Launch& launch, const Environment& environment, Backend backend, const Backends& have) {
  if (launch.size == 1) {
    return false;
  }
  require_launch(backend != Backend::gloo || have.gloo,
                 "--backend is gloo, and this build has no gloo: build it with "
                 "libgloo-dev, or take --backend mpi");
  require_launch(backend != Backend::mpi || have.mpi,
                 "--backend is mpi, and this build has no MPI: build it with one, "
                 "or take --backend gloo");
  if (backend != Backend::automatic) {
    return backend == Backend::gloo;
  }
  const bool of_torch = launch.source == LaunchSource::torchrun || launch.source == LaunchSource::lightning;
  const bool place = !lacks(environment, "MASTER_ADDR") && !lacks(environment, "MASTER_PORT");
  return have.gloo && (of_torch || (!have.mpi && place));
}

MeetingPlace meeting_place(const Environment& environment) {
  const std::string host(value_of(environment, "MASTER_ADDR"));
  const std::string_view agent = value_of(environment, "TORCHELASTIC_USE_AGENT_STORE");
  const std::optional<int> master = number(environment, "MASTER_PORT");
  const std::optional<int> own = number(environment, "LOCKSTEP_PORT");
  const std::string known = shown(environment, {"MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_PORT"});
  require_launch(
      !host.empty() && (master || own), known, known.empty() ? "" : " ",
      host.empty() ? "without MASTER_ADDR" : "without MASTER_PORT",
      ": ranks that meet without MPI need MASTER_ADDR and MASTER_PORT (or LOCKSTEP_PORT), the host of rank 0 "
      "and a free port there; torchrun sets them");
  const bool next = !own && (agent == "True" || agent == "1");
  MeetingPlace place{.host = host, .port = own ? *own : *master + (next ? 1 : 0)};
  place.origin = shown(environment, {"MASTER_ADDR", own ? "LOCKSTEP_PORT" : "MASTER_PORT"}) +
                 (next ? ", at which torchrun listens, so the ranks take the next port; LOCKSTEP_PORT is another" : "");
  require_launch(place.port >= 1 && place.port <= 65535, place.origin, ": port ", place.port, ", expected 1 to 65535");
  place.job = value_of(environment, "TORCHELASTIC_RUN_ID");
  if (const std::optional<int> seconds = number(environment, "LOCKSTEP_MEET_SECONDS")) {
    require_launch(*seconds >= 1 && *seconds <= 1000000, "LOCKSTEP_MEET_SECONDS=", *seconds, ", expected 1 to 1000000");
    place.timeout_s = *seconds;
  }
  return place;
}

int likely_rank(const Environment& environment) noexcept {
  constexpr const char* kRanks[] = {"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                    kTorchrun.rank,         "SLURM_PROCID"};
  // RANK without torchrun's other variables is left over from another program. If RANK alone counted here, a process
  // could take itself for a rank other than 0 and not print its errors.
  const bool torchrun = has_all(environment, kTorchrunSet);
  for (const char* name : kRanks) {
    const bool left_over = name == kTorchrun.rank && !torchrun;
    const auto value = left_over ? std::nullopt : number_in<std::int64_t>(value_of(environment, name));
    if (value && *value >= 0 && *value < (std::int64_t{1} << 31)) {
      return static_cast<int>(*value);
    }
  }
  try {
    const std::optional<Launch> lightning = read_lightning(environment);
    return lightning ? lightning->rank : -1;
  } catch (...) {
    return -1;
  }
}

}  // namespace lockstep::comm
