#include "tests/fuzz/support.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <unistd.h>

namespace lockstep::fuzz {

namespace fs = std::filesystem;

void finding(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

std::string text_of(Input input) {
  return {input.begin(), input.end()};
}

std::vector<std::string> lines_of(Input input) {
  std::vector<std::string> lines;
  for (auto at = input.begin(); at != input.end();) {
    const auto end = std::find(at, input.end(), '\n');
    lines.emplace_back(at, end);
    at = end == input.end() ? end : end + 1;
  }
  return lines;
}

std::uint8_t Cursor::byte() {
  const Input one = bytes(1);
  return one.empty() ? std::uint8_t{0} : one[0];
}

std::uint16_t Cursor::word() {
  const unsigned low = byte();
  return static_cast<std::uint16_t>(low | static_cast<unsigned>(byte()) << 8);
}

Input Cursor::bytes(std::size_t count) {
  const Input taken = rest_.first(std::min(count, rest_.size()));
  rest_ = rest_.subspan(taken.size());
  return taken;
}

Folder::Folder() {
  std::error_code none;
  const bool memory = fs::is_directory("/dev/shm", none) && ::access("/dev/shm", W_OK) == 0;
  std::string pattern = (memory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "lockstep-fuzz-XXXXXX";
  check(::mkdtemp(pattern.data()) != nullptr, "no folder ", pattern);
  path_ = pattern;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Folder::put(std::string_view name, std::string_view bytes) const {
  std::ofstream file(*this / name, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  check(static_cast<bool>(file.flush()), "cannot write ", *this / name);
}

void Folder::clear() const {
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    fs::remove_all(entry.path());
  }
}

const Folder& folder() {
  static const Folder kFolder;
  return kFolder;
}

}  // namespace lockstep::fuzz
