#pragma once

#include <string_view>

namespace lockstep::comm::detail {

/// Text and exit code of an exception. The text lives as long as the exception.
struct Failure {
  const char* text;
  int code;
};
/// Returns the failure of the exception that is being handled. Call it in a handler.
[[nodiscard]] Failure handled_failure() noexcept;

/// Prints one line to standard error, in one write and without the heap: "lockstep: error: [rank R: ]text". The rank is
/// left out if it is negative. Prints control characters of a terminal as \xNN, ends of lines as spaces. Flushes
/// earlier output first.
void print_error(int rank, std::string_view text) noexcept;
/// Prints like print_error(), but does not flush earlier output and takes no lock that another thread may hold.
void write_error(int rank, std::string_view text) noexcept;
/// Prints like write_error(), for a text that is no error: "lockstep: [rank R: ]text".
void write_note(int rank, std::string_view text) noexcept;

}  // namespace lockstep::comm::detail
