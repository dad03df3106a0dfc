#include <lockstep/runtime/files/folder_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/detail/lock_holder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

namespace {

std::string lock_file(const std::string& folder) {
  return folder + "/run.lock";
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = lock_file(folder);
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);  // the umask applies
  if (file_ < 0 && errno == EACCES) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // another user's file: read access is enough for a lock
  }
  require<FileError>(file_ >= 0, path, ": cannot be opened: ", std::strerror(errno));
  int status = 0;
  do {
    status = ::flock(file_, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  if (status == 0) {
    write_lock_holder(file_);
    return;
  }
  const int reason = errno;
  if (reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK) {  // some parallel and network file systems
    return;
  }
  const std::string holder = read_lock_holder(file_);
  ::close(file_);
  require<FileError>(reason == EWOULDBLOCK, path, ": cannot be locked: ", std::strerror(reason));
  throw UsageError(concat(folder, ": another run writes there (", holder,
                          "), expected a folder of this run's own, or that it has ended"));
}

FolderLock::~FolderLock() {
  ::close(file_);
}

bool FolderLock::known(const std::string& folder) {
  return file_exists(lock_file(folder));
}

}  // namespace lockstep
