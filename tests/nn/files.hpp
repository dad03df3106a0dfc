#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.hpp"

namespace lockstep::testing {

using Bytes = std::string;

inline void put_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush()) << path;
}

inline Bytes get_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::size_t count_entries(const std::string& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

/// The text of the E that f throws; a test failure and "" when it throws none. Exactly E, on one line.
template <class E, class F>
std::string error_of(F&& f, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  try {
    f();
  } catch (const E& error) {
    const std::string text = error.what();
    if (text.find('\n') != std::string::npos) {
      ADD_FAILURE_AT(file, line) << "more than one line: " << text;
    }
    return text;
  } catch (const std::exception& error) {
    ADD_FAILURE_AT(file, line) << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE_AT(file, line) << "nothing was thrown";
  return "";
}

/// EXPECT that text holds part.
inline void expect_holds(const std::string& text, const std::string& part, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  if (text.find(part) == std::string::npos) {
    ADD_FAILURE_AT(file, line) << "'" << text << "' does not hold '" << part << "'";
  }
}

}  // namespace lockstep::testing
