#include <lockstep/runtime/files/file.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

constexpr std::size_t kRandomDigits = 16;

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw FileError(concat(path, ": ", what, ": ", std::strerror(error)));
}

std::uint64_t regular_size(const std::string& path, int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    fail(path, "cannot be examined", errno);
  }
  require<DataError>(S_ISREG(status.st_mode), path, ": is not a regular file, expected one");
  return static_cast<std::uint64_t>(status.st_size);
}

void write_all(const std::string& path, int descriptor, std::span<const std::byte> bytes) {
  if (const int why = lockstep::write_all(descriptor, bytes); why != 0) {
    fail(path, "cannot be written", why);
  }
}

std::string folder_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

int write_all(int descriptor, std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // the pipe is full, and another user of the pipe has made it non-blocking
      pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
      static_cast<void>(::poll(&room, 1, -1));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

InputFile::InputFile(std::string path, Links links) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  descriptor_ =
      links == Links::refuse ? open_no_link(path_, O_RDONLY) : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    fail(path_, "cannot be opened", errno);
  }
  try {
    size_ = regular_size(path_, descriptor_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

std::uint64_t InputFile::current_size() const {
  return regular_size(path_, descriptor_);
}

unsigned InputFile::permissions() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    fail(path_, "cannot be examined", errno);
  }
  return status.st_mode & 0777U;
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail(path_, "cannot be read", errno);
    }
    require<DataError>(got > 0, path_, ": ends at byte ", offset, ", expected ", out.size(), " more bytes");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

MappedFile::MappedFile(std::string path) : file_(std::move(path)) {
  if (size() == 0) {
    return;
  }
  void* const memory = ::mmap(nullptr, static_cast<std::size_t>(size()), PROT_READ, MAP_SHARED, file_.descriptor_, 0);
  if (memory == MAP_FAILED) {
    fail(file_.path(), "cannot be mapped", errno);
  }
  begin_ = static_cast<std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (begin_ != nullptr) {
    ::munmap(begin_, static_cast<std::size_t>(size()));
  }
}

std::span<const std::byte> MappedFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  require<DataError>(count <= size() && offset <= size() - count, path(), ": has ", size(), " bytes, expected ", count,
                     " bytes from byte ", offset, " on");
  if (count > 0) {
    ahead(offset, count);  // called before the size check, because the file may shrink while ahead() waits
  }
  // Checks the present size, because access to a page after the end of the file would end the process.
  const std::uint64_t now = file_.current_size();
  require<DataError>(now >= size(), path(), ": has ", now, " bytes, expected at least the ", size(),
                     " that it had when it was opened");
  if (count == 0) {
    return {};
  }
  return {begin_ + offset, static_cast<std::size_t>(count)};
}

void MappedFile::ahead(std::uint64_t offset, std::uint64_t count) const noexcept {
  if (offset >= size()) {
    return;
  }
  const std::uint64_t skipped = offset % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  ::madvise(begin_ + (offset - skipped), static_cast<std::size_t>(std::min(count, size() - offset) + skipped),
            MADV_WILLNEED);
}

OutputFile::OutputFile(std::string path, unsigned permissions) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, permissions);
  if (descriptor_ < 0) {
    fail(path_, "cannot be created", errno);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  require<StateError>(descriptor_ >= 0, path_, ": is written to after finish(), expected all writes before");
  write_all(path_, descriptor_, bytes);
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::finish() {
  require<StateError>(descriptor_ >= 0, path_, ": finish() called twice, expected one call");
  if (::fsync(descriptor_) != 0) {
    fail(path_, "cannot be made durable", errno);
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    const int error = errno;
    ::unlink(path_.c_str());
    fail(path_, "cannot be closed", error);
  }
}

int open_no_link(const std::string& path, int flags) {
  // The umask removes some of the permissions 0666.
  const int descriptor = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  const int error = errno;
  struct stat status {};
  if (descriptor < 0) {
    const bool link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    require<FileError>(!link, path, ": is a link, expected a regular file or nothing");
    fail(path, "cannot be opened", error);
  }
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw FileError(concat(path, ": is no regular file, expected one or nothing"));
  }
  return descriptor;
}

namespace {

/// Truncates the open file `descriptor` after its last complete line. Returns false, with errno set, on failure.
bool remove_cut_line(int descriptor) {
  constexpr off_t kBlock = 1 << 16;
  std::string block;
  const off_t size = ::lseek(descriptor, 0, SEEK_END);
  off_t end = size;
  while (end > 0) {
    block.resize(static_cast<std::size_t>(std::min(end, kBlock)));
    const off_t begin = end - static_cast<off_t>(block.size());
    if (::pread(descriptor, block.data(), block.size(), begin) != static_cast<ssize_t>(block.size())) {
      return false;
    }
    const std::size_t last = block.rfind('\n');
    end = begin + (last == std::string::npos ? 0 : static_cast<off_t>(last) + 1);
    if (last != std::string::npos) {
      break;
    }
  }
  return end == size || ::ftruncate(descriptor, end) == 0;
}

}  // namespace

LogFile::LogFile(std::string path, bool append) : path_(std::move(path)) {
  if (!append) {
    if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
      fail(path_, "cannot be replaced", errno);
    }
    descriptor_ = open_no_link(path_, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
    return;
  }
  descriptor_ = open_no_link(path_, O_RDWR | O_CREAT | O_APPEND);
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 1) {
    ::close(descriptor_);
    throw FileError(concat(path_, ": is a file of ", status.st_nlink, " names (hard links), of which the others would ",
                           "change too; expected one: replace it by a copy"));
  }
  if (!remove_cut_line(descriptor_)) {
    const int error = errno;
    ::close(descriptor_);
    fail(path_, "its cut last line cannot be removed", error);
  }
}

LogFile::~LogFile() {
  ::close(descriptor_);
}

void LogFile::write(std::string_view text) {
  try {
    write_all(path_, descriptor_, std::as_bytes(std::span(text)));
  } catch (const FileError& error) {
    throw WriteError(error.what());
  }
}

bool names_descriptor(const std::string& path) {
  const auto of_system = [](std::string_view name) {
    return name.starts_with("/proc/") || name.starts_with("/dev/fd/");
  };
  char target[4096];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  return of_system(path) || (length > 0 && of_system({target, static_cast<std::size_t>(length)}));
}

namespace {

/// Returns `path`. Throws FileError if a rename to `path` would replace anything but a regular file. For example, a
/// rename by root could replace the system's /dev/full.
std::string replaceable(std::string path) {
  if (names_descriptor(path)) {
    throw FileError(concat(path, ": is a name of the system for an open file, expected a file to replace, or nothing"));
  }
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    const char* const kind = S_ISDIR(there.st_mode)                             ? "a folder"
                             : S_ISFIFO(there.st_mode)                          ? "a FIFO"
                             : S_ISSOCK(there.st_mode)                          ? "a socket"
                             : S_ISCHR(there.st_mode) || S_ISBLK(there.st_mode) ? "a device"
                                                                                : "no regular file";
    throw FileError(concat(path, ": is ", kind, ", expected a regular file to replace, or nothing"));
  }
  return path;
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(replaceable(std::move(path))), temporary_(temporary_beside(path_)), file_(temporary_) {}

void AtomicFile::commit() {
  file_.finish();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail(path_, "cannot be replaced", error);
  }
  sync_folder(folder_of(path_));
}

std::string unique_suffix() {
  constexpr std::size_t kMostOfHost = 64;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == 0) {
    host = {"host"};
  }
  std::random_device random;
  std::array<char, kRandomDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x%08x", random(), random());
  return concat(std::string_view(host.data()).substr(0, kMostOfHost), '-', ::getpid(), "-r", digits.data());
}

bool is_unique_suffix(std::string_view text) {
  const std::size_t mark = text.rfind("-r");
  const std::size_t pid = text.substr(0, mark).rfind('-');
  const auto only = [](std::string_view part, const char* allowed) {
    return !part.empty() && part.find_first_not_of(allowed) == std::string_view::npos;
  };
  return mark != std::string_view::npos && pid != std::string_view::npos && pid > 0 &&
         text.size() == mark + 2 + kRandomDigits && only(text.substr(mark + 2), "0123456789abcdef") &&
         only(text.substr(pid + 1, mark - pid - 1), "0123456789");
}

std::string temporary_beside(const std::string& path) {
  return concat(path, ".tmp-", unique_suffix());
}

bool file_exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

std::string read_file(const std::string& path, std::uint64_t limit) {
  const InputFile file(path);
  require<DataError>(file.size() <= limit, path, ": has ", file.size(), " bytes, expected at most ", limit);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.finish();
}

void replace_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    fail(path, "cannot be opened", errno);
  }
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems cannot synchronise a folder and report EINVAL. EINVAL is ignored, because nothing more can be
  // done.
  if (error != 0 && error != EINVAL) {
    fail(path, "cannot be made durable", error);
  }
}

}  // namespace lockstep
