#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

// Small blocking collectives on host values: checks, options, metrics. They use an inline stream.

[[nodiscard]] std::string broadcast_text(Communicator& communicator, const std::string& text, int root = 0);
/// Every rank's text, in rank order, on every rank.
[[nodiscard]] std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& text);
[[nodiscard]] std::vector<double> all_gather_value(Communicator& communicator, double value);

}  // namespace lockstep::comm
