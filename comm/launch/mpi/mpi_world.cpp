#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <mpi.h>

#include <lockstep/comm/launch/detail/world.hpp>
#include <lockstep/comm/mpi/detail/mpi_internal.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>

namespace lockstep::comm::detail {
namespace {

/// "Open MPI 4.1.4" from "Open MPI v4.1.4, package: ..", "MPICH Version: 4.0" from the first line of MPICH's text.
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

/// Changes environment variables and restores them at the end.
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
  void set(const char* name, const char* value) {  ///< nullptr: not set
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

/// MPI_Init_thread. The environment is restored afterwards, so that programs that this one starts can have other
/// launchers.
int initialise(int& argc, char**& argv) {
  const auto none_of = [](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [](const char* name) { return std::getenv(name) == nullptr; });
  };
  EnvironmentFor environment;
  // Without a launcher, Open MPI starts a world of one by itself and looks for a way to start processes elsewhere
  // (ssh). Containers lack one, so it is told not to look.
  if (none_of({"OMPI_COMM_WORLD_SIZE", "OMPI_MCA_plm"})) {
    environment.set("OMPI_MCA_plm", "isolated");
  }
  // Nor does it need the daemon that would start them: that takes a fifth of a second, and the daemon may stay behind,
  // hanging, when the process is killed while it begins.
  if (none_of({"OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_singleton_isolated"})) {
    environment.set("OMPI_MCA_ess_singleton_isolated", "1");
  }
  // In a step that srun started without --mpi, Open MPI 4 ends the process with a page of text. As a world of one, the
  // process is either right (a step of one task), or Session says in one line what is missing.
  if (none_of({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD"})) {
    environment.set("SLURM_STEPID", nullptr);
    environment.set("SLURM_STEP_ID", nullptr);
  }
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  return level;
}

constexpr const char* kHostAllReduce = "LOCKSTEP_HOST_ALL_REDUCE";

HostAllReduce asked_all_reduce() {
  const char* value = std::getenv(kHostAllReduce);
  const std::string_view text = value == nullptr ? "" : value;
  require<UsageError>(text.empty() || text == "auto" || text == "mpi" || text == "shared", kHostAllReduce, " is '",
                      text, "', expected auto, mpi or shared");
  return text == "mpi" ? HostAllReduce::mpi : text == "shared" ? HostAllReduce::shared : HostAllReduce::automatic;
}

class MpiWorld final : public World {
 public:
  MpiWorld(int& argc, char**& argv) {
    int finalised = 0;
    MPI_Finalized(&finalised);
    require<StateError>(finalised == 0, "session: MPI was finalised before");
    int initialised = 0;
    MPI_Initialized(&initialised);
    int level = MPI_THREAD_SINGLE;
    if (initialised != 0) {
      check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
    } else {
      level = initialise(argc, argv);
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
    node -= 1;  // as the node's first rank has it
    check_mpi(MPI_Bcast(&node, 1, MPI_INT, 0, node_ranks), "MPI_Bcast");
    check_mpi(MPI_Comm_free(&node_ranks), "MPI_Comm_free");
    description = concat(library_name(), ", thread level ", name_of_level(level));
    try {
      all_reduce_ = asked_all_reduce();
    } catch (const UsageError& e) {
      problem = e.what();
    }
    // A program that initialised MPI itself may call it; a program that left that to its Session makes no MPI calls.
    if (level == MPI_THREAD_SERIALIZED && owns_mpi_) {
      serial_.emplace(Stream::host_worker("lockstep-mpi"));
    }
  }

  std::unique_ptr<Communicator> communicator() override {
    auto made = comm::make_mpi_communicator(MPI_COMM_WORLD, {.sole_mpi_worker = serial(), .all_reduce = all_reduce_});
    if (const std::string reason = all_reduce_path(*made).problem;
        !reason.empty() && rank == 0 && !std::exchange(told_, true)) {
      std::fprintf(stderr, "lockstep: ranks of this node cannot share memory, all-reduces are MPI's (%s)\n",
                   reason.c_str());
    }
    return made;
  }
  Stream* serial() override { return serial_ ? &*serial_ : nullptr; }

  void finalise() override {
    serial_.reset();
    if (owns_mpi_) {
      check_mpi(MPI_Finalize(), "MPI_Finalize");
    }
  }

  [[noreturn]] void abort(int code) noexcept override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  bool owns_mpi_ = false;
  HostAllReduce all_reduce_ = HostAllReduce::automatic;
  bool told_ = false;  ///< why the ranks do not share memory
  std::optional<Stream> serial_;
};

}  // namespace

std::unique_ptr<World> make_mpi_world(int& argc, char**& argv) {
  return std::make_unique<MpiWorld>(argc, argv);
}

}  // namespace lockstep::comm::detail
