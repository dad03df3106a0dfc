#pragma once

#include <functional>

namespace lockstep::comm {

/// Calls `body` as the main() of a program of one process, without MPI. If `body` throws, prints one line on standard
/// error ("lockstep: error: text") and returns the exit code of the exception's kind, or 3 if it is no lockstep::Error.
/// Programs of several ranks use run_program() (session.hpp), which sets the process up in the same way.
int run_alone(const std::function<int()>& body) noexcept;

}  // namespace lockstep::comm
