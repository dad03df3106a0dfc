#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

/// State of a process as in /proc/PID/stat (T: stopped, Z: dead), and the time when the process started. The start time
/// distinguishes the process from a later process with the same PID.
struct ProcessState {
  char state = 'X';  ///< X means that there is no such process, or that its state is unknown
  std::int64_t started = 0;
};

[[nodiscard]] inline ProcessState state_of(std::int64_t pid) {
  std::ifstream in(concat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(in, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) {
    return {};
  }
  std::istringstream rest(line.substr(name_end + 1));
  ProcessState found;
  rest >> found.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) {
    rest >> skipped;
  }
  rest >> found.started;
  return rest.fail() ? ProcessState{} : found;
}

}  // namespace lockstep::comm::detail
