#include <lockstep/runtime/detail/lock_holder.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdio>

namespace lockstep {

void write_lock_holder(int file) noexcept {
  std::array<char, 128> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  std::array<char, 200> text{};
  const int bytes = std::snprintf(text.data(), text.size(), "pid %ld on %s, user %ld\n", static_cast<long>(::getpid()),
                                  host.data(), static_cast<long>(::getuid()));
  if (bytes > 0 && ::ftruncate(file, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(file, text.data(), static_cast<std::size_t>(bytes), 0);
  }
}

std::string read_lock_holder(int file) {
  std::array<char, 200> text{};
  const ssize_t bytes = ::pread(file, text.data(), text.size(), 0);
  std::string holder(text.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  holder.erase(std::remove_if(holder.begin(), holder.end(),
                              [](char c) { return std::isprint(static_cast<unsigned char>(c)) == 0; }),
               holder.end());
  return holder.empty() ? "a process that is not known" : holder;
}

}  // namespace lockstep
