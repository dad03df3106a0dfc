#pragma once

#include <string_view>

namespace lockstep::comm::detail {

/// Text and exit code of an exception. The text lives as long as the exception.
struct Failure {
  const char* text;
  int code;
};
/// Returns the text and the exit code of the exception that is being handled. Call it only in a handler.
[[nodiscard]] Failure handled_failure() noexcept;

/// Prints one line to standard error, in one write and without the heap: "lockstep: error: [rank R: ]text". If `rank`
/// is negative, "rank R: " is left out. Prints a terminal's control characters as \xNN and ends of lines as spaces.
/// Flushes earlier output first.
void print_error(int rank, std::string_view text) noexcept;
/// Prints like print_error(), but neither flushes earlier output nor takes a lock that another thread may hold.
void write_error(int rank, std::string_view text) noexcept;
/// Prints a text that is no error, like write_error(), but without "error: ": "lockstep: [rank R: ]text".
void write_note(int rank, std::string_view text) noexcept;

}  // namespace lockstep::comm::detail
