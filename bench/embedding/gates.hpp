#pragma once

#include <string>

namespace lockstep::bench {

/// Options of the gates. A gate is a limit of the ratio of two median times: the time of a call of the C interface, and
/// the time of another implementation of the same network. The two implementations take turns, so that other programs
/// disturb both equally. Gates should run on a quiet machine.
struct GateOptions {
  std::string chosen = ".";  ///< regular expression; a gate is chosen if its name contains a match
  double slack = 1;          ///< factor of all limits
};

struct GateReport {
  std::string text{};  ///< a line per gate: "holds  f32/n:32/c over plain  0.161, at most 0.5"
  int failed = 0;
};

/// Measures and checks the chosen gates. Throws UsageError for an invalid expression, and for an expression that
/// matches no gate.
[[nodiscard]] GateReport check_gates(const GateOptions& options);

}  // namespace lockstep::bench
