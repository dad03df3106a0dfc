#include <cstdlib>
#include <optional>
#include <string_view>

#include <mpi.h>

#include <lockstep/comm/detail/world.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/comm/mpi/mpi_internal.hpp>

namespace lockstep::comm::detail {
namespace {

std::string_view name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_MULTIPLE:
      return "multiple";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    default:
      return "single";
  }
}

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

/// MPI_Init_thread. A process without a launcher is a world of one that Open MPI starts by itself; it then looks for
/// a way to start processes elsewhere (ssh), which containers lack, unless it is told that there is none.
int initialise(int& argc, char**& argv) {
  const char* const kLaunch = "OMPI_MCA_plm";
  const bool alone = std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr && std::getenv(kLaunch) == nullptr;
  if (alone) {
    ::setenv(kLaunch, "isolated", 1);
  }
  int level = MPI_THREAD_SINGLE;
  const int rc = MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (alone) {
    ::unsetenv(kLaunch);  // programs that this one starts are not alone
  }
  check_mpi(rc, "MPI_Init_thread");
  return level;
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
    if (level == MPI_THREAD_SERIALIZED) {
      serial_.emplace(Stream::host_worker("lockstep-mpi"));
    }
  }

  std::unique_ptr<Communicator> communicator() override {
    return comm::make_mpi_communicator(MPI_COMM_WORLD, serial());
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
  std::optional<Stream> serial_;
};

}  // namespace

std::unique_ptr<World> make_mpi_world(int& argc, char**& argv) {
  return std::make_unique<MpiWorld>(argc, argv);
}

}  // namespace lockstep::comm::detail
