#include <lockstep/comm/mpi/detail/node_window.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <random>

#include <lockstep/comm/mpi/detail/mpi_internal.hpp>

namespace lockstep::comm::detail {
namespace {

constexpr std::size_t kMostText = 256;

/// Process and descriptor by which the other ranks find rank 0's file, and the file's first bytes. The other ranks
/// check these bytes, because in another PID namespace the same path may lead to another file.
struct Place {
  std::int64_t pid = 0;
  std::int64_t file = -1;
  std::uint64_t token = 0;
};

class File {
 public:
  explicit File(int file) : file_(file) {}
  ~File() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int get() const { return file_; }

 private:
  int file_;
};

std::string because(std::string_view what, int reason) {
  return concat(what, ": ", std::strerror(reason));
}

/// Allocates `bytes` of memory for `file`. Returns the error's number, or 0. Blocks signals, which would interrupt the
/// allocation. First checks the process's limit of file sizes, because a larger allocation would raise a signal.
int allocate(int file, std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    return EFBIG;
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

void* map(int file, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

int in_all(MPI_Comm comm, int value, MPI_Op op) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, op, comm), "MPI_Allreduce");
  return value;
}

bool on_one_node(MPI_Comm comm, int size) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  int here = 0;
  const int rc = MPI_Comm_size(node, &here);
  MPI_Comm_free(&node);
  check_mpi(rc, "MPI_Comm_size");
  return in_all(comm, here, MPI_MIN) == size;
}

}  // namespace

NodeWindow::NodeWindow(MPI_Comm comm, std::size_t bytes) : bytes_(bytes) {
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  if (size == 1 || !on_one_node(comm, size)) {
    return;
  }
  std::string problem;
  Place place;
  const File own(rank == 0 ? ::memfd_create("lockstep", MFD_CLOEXEC) : -1);
  if (rank == 0) {
    place = {.pid = ::getpid(), .file = own.get(), .token = std::uint64_t{std::random_device()()} << 32 | 1};
    if (own.get() < 0) {
      problem = because("memfd_create", errno);
    } else if (const int error = allocate(own.get(), bytes); error != 0) {
      problem = because(concat("cannot allocate ", bytes, " bytes of shared memory"), error);
    } else if ((memory_ = map(own.get(), bytes)) == nullptr) {
      problem = because("mmap", errno);
    } else {
      std::memcpy(memory_, &place.token, sizeof place.token);
    }
  }
  check_mpi(MPI_Bcast(&place, sizeof place, MPI_BYTE, 0, comm), "MPI_Bcast");
  if (rank != 0 && place.file >= 0) {
    const std::string path = concat("/proc/", place.pid, "/fd/", place.file);
    const File theirs(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    std::uint64_t token = 0;
    if (theirs.get() < 0) {
      problem = because(path, errno);
    } else if (::pread(theirs.get(), &token, sizeof token, 0) != sizeof token || token != place.token ||
               ::lseek(theirs.get(), 0, SEEK_END) != static_cast<off_t>(bytes)) {
      problem = concat(path, " is not the memory of rank 0");
    } else if ((memory_ = map(theirs.get(), bytes)) == nullptr) {
      problem = because("mmap", errno);
    }
  }
  const int culprit = in_all(comm, problem.empty() ? size : rank, MPI_MIN);
  if (culprit == size) {
    if (rank == 0) {
      std::memset(memory_, 0, sizeof place.token);
    }
    check_mpi(MPI_Barrier(comm), "MPI_Barrier");  // no rank begins before the zeros are written
    return;
  }
  unmap();
  std::array<char, kMostText> text{};
  problem.copy(text.data(), text.size() - 1);
  check_mpi(MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, culprit, comm), "MPI_Bcast");
  why_not_ = concat("rank ", culprit, ": ", text.data());
}

void NodeWindow::unmap() {
  if (memory_ != nullptr) {
    ::munmap(memory_, bytes_);
    memory_ = nullptr;
  }
}

NodeWindow::~NodeWindow() {
  unmap();
}

}  // namespace lockstep::comm::detail
