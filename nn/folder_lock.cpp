#include <lockstep/nn/folder_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <lockstep/runtime/error.hpp>
#include <lockstep/runtime/lock_holder.hpp>

namespace lockstep::nn {

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/run.lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);  // less the umask
  require<DataError>(file_ >= 0, path, ": cannot be made: ", std::strerror(errno));
  int status = 0;
  do {
    status = ::flock(file_, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  if (status == 0) {
    write_lock_holder(file_);
  } else if (errno == EWOULDBLOCK) {
    const std::string holder = read_lock_holder(file_);
    ::close(file_);
    throw UsageError(concat(folder, ": another run writes there (", holder, "), expected a folder of this run's own"));
  }
}

FolderLock::~FolderLock() {
  static_cast<void>(::ftruncate(file_, 0));
  ::close(file_);
}

}  // namespace lockstep::nn
