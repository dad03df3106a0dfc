#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>
#include <unistd.h>

#include <lockstep/comm/hierarchical_communicator.hpp>
#include <lockstep/comm/launch/detail/world.hpp>
#include <lockstep/comm/mpi/detail/mpi_internal.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>

namespace lockstep::comm::detail {
namespace {

/// Shortens the MPI library's own text, such as "Open MPI v4.1.4, package: ..", to a name: "Open MPI 4.1.4".
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string_view all(text, static_cast<std::size_t>(length));
  std::string name;
  for (const char c : all.substr(0, all.find_first_of(",\n"))) {
    const bool space = c == ' ' || c == '\t';
    if (!space) {
      name += c;
    } else if (!name.empty() && name.back() != ' ') {
      name += ' ';
    }
  }
  if (const std::size_t v = name.find(" v"); v != std::string::npos) {
    name.erase(v + 1, 1);
  }
  return name;
}

/// Changes environment variables for a time: the destructor restores all of them.
class EnvironmentFor {
 public:
  EnvironmentFor() = default;
  EnvironmentFor(const EnvironmentFor&) = delete;
  EnvironmentFor& operator=(const EnvironmentFor&) = delete;
  ~EnvironmentFor() {
    for (const auto& [name, value] : before_) {
      put(name, value ? value->c_str() : nullptr);
    }
  }
  void set(const char* name, const char* value) {  ///< sets the variable; removes it if `value` is nullptr
    const char* now = std::getenv(name);
    before_.emplace_back(name, now == nullptr ? std::nullopt : std::optional<std::string>(now));
    put(name, value);
  }

 private:
  static void put(const char* name, const char* value) {
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

/// Makes an empty folder with a new name in the folder that Open MPI uses for temporary files, and returns its path.
std::string make_temporary_folder() {
  std::string folder = "/tmp";
  for (const char* name : {"TMP", "TEMP", "TMPDIR"}) {  // the last variable that is set counts
    const char* value = std::getenv(name);
    folder = value != nullptr && *value != '\0' ? value : folder;
  }
  std::string made = folder + "/ompi.XXXXXX";
  const bool there = ::mkdtemp(made.data()) != nullptr;
  require<UsageError>(there, "the folder for temporary files (TMPDIR) is '", folder,
                      "', expected one that can be written: ", std::strerror(errno));
  return made;
}

/// Calls MPI_Init_thread and returns the thread level. Restores the environment afterwards, because a program that this
/// program starts may have another launcher. If no launcher started this process, may make a temporary folder and set
/// `folder` to its path. The caller must delete this folder after MPI_Finalize.
int initialise(int& argc, char**& argv, std::string& folder) {
  const auto none_of = [](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [](const char* name) { return std::getenv(name) == nullptr; });
  };
  EnvironmentFor environment;
  // Without a launcher, Open MPI makes a world of one rank, and searches for a way to start processes on other hosts
  // (ssh). This setting prevents the search, because many containers have no ssh.
  if (none_of({"OMPI_COMM_WORLD_SIZE", "OMPI_MCA_plm"})) {
    environment.set("OMPI_MCA_plm", "isolated");
  }
  // Without a launcher, Open MPI also starts a daemon that could start more processes. lockstep never needs this
  // daemon. Its start takes a fifth of a second. If this process is killed during the start, the daemon may stay and
  // hang.
  if (none_of({"OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_singleton_isolated"})) {
    environment.set("OMPI_MCA_ess_singleton_isolated", "1");
  }
  // All programs without a launcher would share one folder for temporary files, and a program that ends would delete
  // the files of the other programs. So each program gets its own folder. If the folder cannot be made, this function
  // must throw: MPI_Init of Open MPI 5 would only print the error and return success, and the next MPI call would
  // crash. Open MPI 4 takes the folder from OMPI_MCA_orte_jobfam_session_dir, Open MPI 5 from TMPDIR.
  if (library_name().starts_with("Open MPI") &&
      none_of({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "OMPI_MCA_orte_jobfam_session_dir"})) {
    folder = make_temporary_folder();
    environment.set("OMPI_MCA_orte_jobfam_session_dir", folder.c_str());
    environment.set("TMPDIR", folder.c_str());
  }
  // In a SLURM step that srun started without --mpi, Open MPI 4 ends the process with a page of text. Without the two
  // variables below, Open MPI makes a world of one rank instead. This is correct for a step of one task. For other
  // steps, Session prints one line that says what is missing.
  if (none_of({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD"})) {
    environment.set("SLURM_STEPID", nullptr);
    environment.set("SLURM_STEP_ID", nullptr);
  }
  // The ranks of one node need no routes to each other. Open MPI 5 nevertheless asks the kernel for routes, finds none
  // from an IPv6 address to itself, and prints a warning ("Unable to find reachable pairing"). So its
  // component netlink, which asks the kernel, is switched off.
  const char* const ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* const here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (ranks != nullptr && here != nullptr && std::string_view(ranks) == here && none_of({"OMPI_MCA_reachable"})) {
    environment.set("OMPI_MCA_reachable", "^netlink");
  }
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  return level;
}

constexpr const char* kHostAllReduce = "LOCKSTEP_HOST_ALL_REDUCE";

struct Asked {
  HostAllReduce all_reduce = HostAllReduce::automatic;
  bool hierarchical = false;
};

Asked asked_all_reduce() {
  const char* value = std::getenv(kHostAllReduce);
  const std::string_view text = value == nullptr ? "" : value;
  require<UsageError>(text.empty() || text == "auto" || text == "mpi" || text == "shared" || text == "hierarchical",
                      kHostAllReduce, " is '", text, "', expected auto, mpi, shared or hierarchical");
  return {.all_reduce = text == "mpi"      ? HostAllReduce::mpi
                        : text == "shared" ? HostAllReduce::shared
                                           : HostAllReduce::automatic,
          .hierarchical = text == "hierarchical"};
}

/// Returns true if a hierarchical all-reduce is faster than a flat one by the alpha-beta model. This holds if a node
/// has at least two ranks on average: between nodes, the hierarchy then sends fewer bytes in fewer steps than a ring or
/// recursive doubling over all ranks. Within a node, both algorithms move the bytes twice through memory. With one rank
/// on each node, the hierarchy would only add calls.
bool hierarchy_pays(int ranks, int nodes) {
  return nodes > 1 && ranks >= 2 * nodes;
}

class MpiWorld final : public World {
 public:
  MpiWorld(int& argc, char**& argv) {
    int finalised = 0;
    MPI_Finalized(&finalised);
    require<StateError>(finalised == 0, "session: MPI was finalised before, expected a session before MPI_Finalize");
    int initialised = 0;
    MPI_Initialized(&initialised);
    int level = MPI_THREAD_SINGLE;
    if (initialised != 0) {
      check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
    } else {
      level = initialise(argc, argv, folder_);
      owns_mpi_ = true;
    }
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    MPI_Comm node_ranks = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node_ranks),
              "MPI_Comm_split_type");
    check_mpi(MPI_Comm_rank(node_ranks, &local_rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(node_ranks, &local_size), "MPI_Comm_size");
    const int leads = local_rank == 0 ? 1 : 0;
    check_mpi(MPI_Allreduce(&leads, &nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    check_mpi(MPI_Scan(&leads, &node, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), "MPI_Scan");
    node -= 1;  // node numbers begin at 0; before MPI_Bcast, only the first rank of a node has the right number
    check_mpi(MPI_Bcast(&node, 1, MPI_INT, 0, node_ranks), "MPI_Bcast");
    check_mpi(MPI_Comm_free(&node_ranks), "MPI_Comm_free");
    description = concat(library_name(), ", thread level ", name_of_level(level));
    node_of_rank_.resize(static_cast<std::size_t>(size));
    check_mpi(MPI_Allgather(&node, 1, MPI_INT, node_of_rank_.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
    bool hierarchical = false;
    try {
      const Asked asked = asked_all_reduce();
      all_reduce_ = asked.all_reduce;
      hierarchical =
          asked.hierarchical || (asked.all_reduce == HostAllReduce::automatic && hierarchy_pays(size, nodes));
    } catch (const UsageError& e) {
      problem = e.what();
    }
    // The ranks' environments may differ. So the all-reduce is hierarchical only if every rank chooses this.
    int on_all = hierarchical && nodes > 1 ? 1 : 0;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &on_all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
    hierarchical_ = on_all == 1;
    // If the program has initialised MPI itself, it may also make MPI calls itself. Then no stream of lockstep can make
    // all MPI calls of the process.
    if (level == MPI_THREAD_SERIALIZED && owns_mpi_) {
      serial_.emplace(Stream::host_worker("lockstep-mpi"));
    }
  }

  std::unique_ptr<Communicator> communicator() override {
    auto made = comm::make_mpi_communicator(
        MPI_COMM_WORLD, {.sole_mpi_worker = serial(), .all_reduce = all_reduce_, .all_in_memory = hierarchical_});
    AllReducePath path = all_reduce_path(*made);
    if (hierarchical_) {
      auto divided = std::make_unique<HierarchicalCommunicator>(std::move(made), node_of_rank_);
      path = all_reduce_path(divided->within_node());
      made = std::move(divided);
    }
    path.problem = first_problem(path.problem);
    if (nodes > 1) {
      const bool in_memory = hierarchical_ && path.problem.empty();
      sums = hierarchical_
                 ? concat(in_memory ? "in shared memory" : "by MPI", " within a node, by MPI between ", nodes, " nodes")
                 : concat("by MPI over all ranks of ", nodes, " nodes");
    } else if (size > 1 && !path.shared) {
      sums = "by MPI";
    }
    if (const std::string& reason = path.problem; !reason.empty() && rank == 0 && !std::exchange(told_, true)) {
      std::fprintf(stderr, "lockstep: ranks of a node cannot share memory, its all-reduces are MPI's (%s)\n",
                   reason.c_str());
    }
    return made;
  }
  Stream* serial() override { return serial_ ? &*serial_ : nullptr; }

  void finalise() override {
    serial_.reset();
    if (owns_mpi_) {
      check_mpi(MPI_Finalize(), "MPI_Finalize");
      delete_folder();
    }
  }

  [[noreturn]] void abort(int code) noexcept override {
    // Waits, because launchers (MPICH's) may drop output that they have not yet forwarded when a job aborts. This
    // output may be the line with the reason.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    delete_folder();
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  void delete_folder() const noexcept {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// Returns, on all ranks, the problem of the lowest rank whose `own` is not empty; empty if no rank has a problem.
  /// Collective.
  [[nodiscard]] std::string first_problem(const std::string& own) const {
    int first = own.empty() ? size : rank;
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
    if (first == size) {
      return "";
    }
    std::string text = rank == first ? concat("rank ", rank, ": ", own) : "";
    int length = static_cast<int>(text.size());
    check_mpi(MPI_Bcast(&length, 1, MPI_INT, first, MPI_COMM_WORLD), "MPI_Bcast");
    text.resize(static_cast<std::size_t>(length));
    check_mpi(MPI_Bcast(text.data(), length, MPI_CHAR, first, MPI_COMM_WORLD), "MPI_Bcast");
    return text;
  }

  bool owns_mpi_ = false;
  std::string folder_;  ///< folder for Open MPI's temporary files; empty if none was made
  HostAllReduce all_reduce_ = HostAllReduce::automatic;
  bool hierarchical_ = false;
  std::vector<int> node_of_rank_;
  bool told_ = false;  ///< true after the reason why the ranks cannot share memory was printed
  std::optional<Stream> serial_;
};

}  // namespace

std::unique_ptr<World> make_mpi_world(int& argc, char**& argv) {
  return std::make_unique<MpiWorld>(argc, argv);
}

}  // namespace lockstep::comm::detail
