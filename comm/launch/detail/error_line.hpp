#pragma once

#include <string_view>

namespace lockstep::comm::detail {

/// What an exception comes to: a text, which lives as long as the exception, and the exit code.
struct Failure {
  const char* text;
  int code;
};
/// In a handler: of the exception that it handles.
[[nodiscard]] Failure handled_failure() noexcept;

/// Prints one line to standard error, in one write, without touching the heap: "lockstep: error: [rank R: ]text"; a
/// negative rank is left out. What a terminal would obey stands there as \xNN, ends of lines as spaces. Flushes earlier
/// output first.
void print_error(int rank, std::string_view text) noexcept;
/// The same without flushing earlier output, and without a lock that another thread may hold.
void write_error(int rank, std::string_view text) noexcept;
/// As write_error(), of what is no error: "lockstep: [rank R: ]text".
void write_note(int rank, std::string_view text) noexcept;

}  // namespace lockstep::comm::detail
