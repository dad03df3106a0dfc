#include <lockstep/runtime/detail/lock_holder.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdio>

namespace lockstep {

namespace {

/// Describes a lock on the first byte of the file (F_OFD_SETLK). The holder keeps this lock until it closes the file.
/// While the lock is held, the text in the file describes the present holder; otherwise the text is out of date.
struct flock of_text() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

}  // namespace

void write_lock_holder(int file) noexcept {
  std::array<char, 128> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  std::array<char, 200> text{};
  const int bytes = std::snprintf(text.data(), text.size(), "pid %ld on %s, user %ld\n", static_cast<long>(::getpid()),
                                  host.data(), static_cast<long>(::getuid()));
  if (bytes > 0 && ::ftruncate(file, 0) == 0 &&
      ::pwrite(file, text.data(), static_cast<std::size_t>(bytes), 0) == bytes) {
    struct flock lock = of_text();
    static_cast<void>(::fcntl(file, F_OFD_SETLK, &lock));
  }
}

std::string read_lock_holder(int file) {
  struct flock lock = of_text();
  const bool former = ::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
  std::array<char, 200> text{};
  const ssize_t bytes = former ? 0 : ::pread(file, text.data(), text.size(), 0);
  std::string holder(text.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  holder.erase(std::remove_if(holder.begin(), holder.end(),
                              [](char c) { return std::isprint(static_cast<unsigned char>(c)) == 0; }),
               holder.end());
  return holder.empty() ? "a process that is not known" : holder;
}

}  // namespace lockstep
