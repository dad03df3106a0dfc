#pragma once

#include <functional>

namespace lockstep::comm {

/// Runs the main() of a program of one process, without MPI. Calls `body`. An exception becomes one line on standard
/// error ("lockstep: error: text") and the exit code of its kind, or 3 if it is not an Error. Programs of several ranks
/// use run_program() (session.hpp), which sets the process up in the same way.
int run_alone(const std::function<int()>& body) noexcept;

}  // namespace lockstep::comm
