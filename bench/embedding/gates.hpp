#pragma once

#include <string>

namespace lockstep::bench {

/// What a call of the C interface may cost beside what it is compared with. Medians of calls that take turns, so that
/// what else the machine does meets all of them alike. For a quiet machine.
struct GateOptions {
  std::string chosen = ".";  ///< a regular expression: gates whose name contains a match
  double slack = 1;          ///< limits are multiplied by it
};

struct GateReport {
  std::string text{};  ///< a line a gate: "holds  f32/n:32/c over plain  0.161, at most 0.5"
  int failed = 0;
};

/// UsageError for an expression that none matches, or that is none.
[[nodiscard]] GateReport check_gates(const GateOptions& options);

}  // namespace lockstep::bench
