#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/// Functions that find out which pages of a file the system holds in memory. A memory file system always holds all
/// pages.
namespace lockstep::testing {

inline std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// Removes the pages of a file from the system's page cache, except for pages that a process has mapped and touched.
/// The file must be on a disk.
inline void forget(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(descriptor);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

/// Returns for each page of the file whether the system holds it in memory.
inline std::vector<bool> resident(const std::string& path) {
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(path));
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  std::vector<unsigned char> pages((bytes + page_bytes() - 1) / page_bytes());
  ::mincore(memory, bytes, pages.data());
  ::munmap(memory, bytes);
  ::close(descriptor);
  std::vector<bool> held;
  for (const unsigned char page : pages) {
    held.push_back((page & 1U) != 0);
  }
  return held;
}

/// True if a page that holds bytes [begin, end) is absent. If no page is absent after forget(), the file is in a memory
/// file system, and a test of read-ahead would prove nothing.
inline bool some_absent(const std::string& path, std::uint64_t begin, std::uint64_t end) {
  const std::vector<bool> held = resident(path);
  bool all = true;
  for (std::size_t page = begin / page_bytes(); page * page_bytes() < end; ++page) {
    all = all && held[page];
  }
  return !all;
}

/// Waits for at most a minute. True if all pages that hold bytes [begin, end) are then in memory.
inline bool becomes_resident(const std::string& path, std::uint64_t begin, std::uint64_t end) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::minutes(1)) {
    if (!some_absent(path, begin, end)) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace lockstep::testing
