#pragma once

#include <string_view>

namespace lockstep::comm::detail {

/// One line on standard error, in one write, without touching the heap: "lockstep: error: [rank R: ]text"; no rank when
/// it is negative. What was printed before comes first.
void print_error(int rank, std::string_view text) noexcept;
/// The same without a look at what was printed before, and without a lock that another thread may hold.
void write_error(int rank, std::string_view text) noexcept;

}  // namespace lockstep::comm::detail
