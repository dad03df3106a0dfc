#pragma once

#include <string_view>

namespace lockstep::comm::detail {

/// One line on standard error, in one write, without touching the heap: "lockstep: error: [rank R: ]text"; no rank when
/// it is negative.
void print_error(int rank, std::string_view text) noexcept;

}  // namespace lockstep::comm::detail
