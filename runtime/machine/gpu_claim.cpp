#include <lockstep/runtime/machine/gpu_claim.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/detail/lock_holder.hpp>

namespace lockstep {
namespace {

constexpr mode_t kAllUsers = 0777;
constexpr mode_t kFileMode = 0666;
// Greatest number of retries if other processes make or delete the claim's file between two calls.
constexpr int kRaces = 100;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&&) = delete;
  ~File() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

[[noreturn]] void refuse(const std::string& folder, std::string_view what, std::string_view why) {
  throw DeviceError(concat("claiming GPUs in ", folder, ": ", what, ": ", why,
                           "; expected a folder where all users of the GPUs may write (mode 1777), set "
                           "LOCKSTEP_CLAIM_FOLDER to another one"));
}

File open_folder(const std::string& folder) {
  const bool made = ::mkdir(folder.c_str(), S_ISVTX | kAllUsers) == 0;
  if (!made && errno != EEXIST) {
    refuse(folder, "it cannot be made", std::strerror(errno));
  }
  // O_NOFOLLOW protects against links: in a world-writable /tmp, any user could make a link of this name to another
  // folder.
  File opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (opened.get() < 0) {
    refuse(folder, "it cannot be opened", std::strerror(errno));
  }
  if (made) {  // the umask may have removed permissions from the new folder; fchmod() adds them
    static_cast<void>(::fchmod(opened.get(), S_ISVTX | kAllUsers));
  }
  return opened;
}

/// Opens the claim's file `name`, or makes it. O_CREAT alone is not enough: under fs.protected_regular, Linux refuses
/// O_CREAT for another user's existing file in a sticky folder.
File open_file(const std::string& folder, int folder_file, const std::string& name) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;  // O_NONBLOCK: opening a FIFO of this name must not block
  for (int i = 0; i < kRaces; ++i) {
    int file = ::openat(folder_file, name.c_str(), O_RDWR | kFlags);
    if (file < 0 && errno == EACCES) {
      file = ::openat(folder_file, name.c_str(), O_RDONLY | kFlags);  // a lock needs only read access
    }
    if (file < 0 && errno == ENOENT) {
      file = ::openat(folder_file, name.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, kFileMode);
      if (file >= 0) {
        static_cast<void>(::fchmod(file, kFileMode));
      } else if (errno == EEXIST) {
        continue;
      } else if (errno == EACCES) {  // another process has made the folder, but has not yet called fchmod()
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        errno = EACCES;
        if (i + 1 < kRaces) {
          continue;
        }
      }
    }
    if (file < 0) {
      refuse(folder, name, std::strerror(errno));
    }
    File opened(file);
    struct stat status {};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
      refuse(folder, name, "not a regular file");
    }
    return opened;
  }
  refuse(folder, name, "it comes and goes");
}

/// Returns true if `file`, which is locked, is still the file that other processes find under `name`.
bool in_place(int folder_file, const std::string& name, int file) {
  struct stat own {};
  struct stat named {};
  return ::fstat(file, &own) == 0 && ::fstatat(folder_file, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

}  // namespace

std::string default_claim_folder() {
  const char* folder = std::getenv("LOCKSTEP_CLAIM_FOLDER");
  if (folder == nullptr || *folder == '\0') {
    return "/tmp/lockstep-claims";
  }
  require<UsageError>(*folder == '/', "LOCKSTEP_CLAIM_FOLDER is '", folder, "', expected an absolute path");
  return folder;
}

GpuClaim::Attempt GpuClaim::attempt(const std::string& folder, const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; });
  require<UsageError>(plain && !name.empty(), "claiming a GPU: its name is '", name, "', expected a UUID");
  const File opened = open_folder(folder);
  for (int i = 0; i < kRaces; ++i) {
    File file = open_file(folder, opened.get(), name);
    int status = 0;
    do {
      status = ::flock(file.get(), LOCK_EX | LOCK_NB);
    } while (status != 0 && errno == EINTR);
    if (status != 0 && errno != EWOULDBLOCK) {
      refuse(folder, name, std::strerror(errno));
    }
    if (!in_place(opened.get(), name, file.get())) {
      continue;
    }
    if (status != 0) {
      return {.holder = read_lock_holder(file.get())};
    }
    write_lock_holder(file.get());
    return {.claim = GpuClaim(file.release(), name)};
  }
  refuse(folder, name, "it comes and goes");
}

GpuClaim::GpuClaim(int file, std::string name) : file_(file), owner_(::getpid()), name_(std::move(name)) {}

GpuClaim::GpuClaim(GpuClaim&& other) noexcept
    : file_(std::exchange(other.file_, -1)), owner_(other.owner_), name_(std::move(other.name_)) {}

GpuClaim& GpuClaim::operator=(GpuClaim&& other) noexcept {
  if (this != &other) {
    release();
    file_ = std::exchange(other.file_, -1);
    owner_ = other.owner_;
    name_ = std::move(other.name_);
  }
  return *this;
}

GpuClaim::~GpuClaim() {
  release();
}

void GpuClaim::release() noexcept {
  if (file_ < 0) {
    return;
  }
  if (owner_ == ::getpid()) {  // a forked child only closes its own descriptor
    static_cast<void>(::ftruncate(file_, 0));
    static_cast<void>(::flock(file_, LOCK_UN));
  }
  ::close(file_);
  file_ = -1;
}

}  // namespace lockstep
