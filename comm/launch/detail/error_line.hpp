#pragma once

#include <string_view>

namespace lockstep::comm::detail {

/// Text and exit code of an exception. The text lives as long as the exception.
struct Failure {
  const char* text;
  int code;
};
/// Called in a handler: returns the failure of the exception that it handles.
[[nodiscard]] Failure handled_failure() noexcept;

/// Prints one line to standard error, in one write, without touching the heap: "lockstep: error: [rank R: ]text"; a
/// negative rank is left out. Control characters of a terminal are printed as \xNN, ends of lines as spaces. Flushes
/// earlier output first.
void print_error(int rank, std::string_view text) noexcept;
/// As print_error(), without flushing earlier output, and without a lock that another thread may hold.
void write_error(int rank, std::string_view text) noexcept;
/// As write_error(), for a text that is no error: "lockstep: [rank R: ]text".
void write_note(int rank, std::string_view text) noexcept;

}  // namespace lockstep::comm::detail
