#include <lockstep/runtime/files/folder_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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
  // This process may not write another user's lock file. So it opens such a file for reading, which is enough for a
  // lock.
  const bool may_write = !known(folder) || ::access(path.c_str(), W_OK) == 0;
  file_ = open_no_link(path, may_write ? O_RDWR | O_CREAT : O_RDONLY);
  int status = 0;
  do {
    status = ::flock(file_, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  if (status == 0) {
    return;
  }
  const int reason = errno;
  // Some parallel and network file systems have no flock(). There the folder is used without a lock.
  if (reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK) {
    return;
  }
  const std::string holder = read_lock_holder(file_);
  ::close(file_);
  require<FileError>(reason == EWOULDBLOCK, path, ": cannot be locked: ", std::strerror(reason),
                     "; expected a file system with locks");
  throw UsageError(concat(folder, ": another run writes there (", holder,
                          "), expected a folder of this run's own, or the end of the other run"));
}

FolderLock::~FolderLock() {
  ::close(file_);
}

bool FolderLock::known(const std::string& folder) {
  struct stat status {};
  return ::lstat(lock_file(folder).c_str(), &status) == 0;  // lstat() also finds a link without a target
}

void FolderLock::name_holder() noexcept {
  struct stat status {};
  // Writes only if the file has no second name, because under that name it could be another user's file.
  if (::fstat(file_, &status) == 0 && status.st_nlink == 1) {
    write_lock_holder(file_);
  }
}

}  // namespace lockstep
