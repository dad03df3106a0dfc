#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

#include "tests/fuzz/readers.hpp"

namespace lockstep::fuzz {

/// Prints the text and aborts. libFuzzer and ctest report the abort as a failure.
[[noreturn]] void finding(const std::string& what);

template <class... Parts>
void check(bool holds, const Parts&... parts) {
  if (!holds) {
    finding(concat(parts...));
  }
}

/// Runs a reader. Returns false when it throws the error that its contract names; any other exception is a finding.
template <class Expected, class Read>
bool accepts(Read&& read) {
  try {
    std::forward<Read>(read)();
    return true;
  } catch (const Expected& refused) {
    check(refused.what() != std::string_view(), "an error without a text");
    return false;
  } catch (const Error& error) {
    finding(concat("another error than the documented one: ", error.what()));
  } catch (const std::exception& error) {
    finding(concat("an exception that is none of lockstep's: ", error.what()));
  }
}

[[nodiscard]] std::string text_of(Input input);
/// Returns the lines of a text; the last line needs no line end.
[[nodiscard]] std::vector<std::string> lines_of(Input input);

/// Reads an input from front to back. After the end of the input every value read is zero or empty.
class Cursor {
 public:
  explicit Cursor(Input input) : rest_(input) {}
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  std::uint8_t byte();
  std::uint16_t word();  ///< two bytes, little-endian
  Input bytes(std::size_t count);
  Input piece() { return bytes(word()); }  ///< reads a word, the length, and then that number of bytes
  Input rest() { return bytes(rest_.size()); }

 private:
  Input rest_;
};

/// Makes an empty folder, in memory if /dev/shm exists, and deletes it in the destructor.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(std::string_view name) const { return concat(path_, '/', name); }
  void put(std::string_view name, std::string_view bytes) const;
  void clear() const;

 private:
  std::string path_;
};

/// Returns the temporary folder of this process, which all readers use.
[[nodiscard]] const Folder& folder();

}  // namespace lockstep::fuzz
