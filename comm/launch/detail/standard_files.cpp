#include <lockstep/comm/launch/detail/standard_files.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep::comm::detail {

namespace {

/// Returns the mode in which a program uses the standard file with descriptor `file`: 0, 1 or 2.
int use_of(int file) {
  return file == STDIN_FILENO ? O_RDONLY : O_WRONLY;
}

/// Returns the mode opposite to use_of(). In this mode every use of the descriptor fails.
int misuse_of(int file) {
  return file == STDIN_FILENO ? O_WRONLY : O_RDONLY;
}

void open_null(int file, int mode) noexcept {
  const int null = ::open("/dev/null", mode);
  if (null >= 0 && null != file) {
    ::dup2(null, file);
    ::close(null);
  }
}

}  // namespace

void open_standard_files() noexcept {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(file, F_GETFD) < 0 && errno == EBADF) {
      open_null(file, misuse_of(file));
    }
  }
}

void give_null_files() noexcept {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const int flags = ::fcntl(file, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == misuse_of(file)) {
      open_null(file, use_of(file));
    }
  }
}

void require_output_written() {
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = flushed ? 0 : errno;  // 0 if the reason is unknown, because an earlier flush failed
  require<WriteError>(flushed && std::ferror(stdout) == 0,
                      "standard output: what was printed cannot be written, expected a file with room or a reader",
                      reason == 0 ? "" : ": ", reason == 0 ? "" : std::strerror(reason));
}

}  // namespace lockstep::comm::detail
