#pragma once

#include <functional>

namespace lockstep::comm {

/// The main() of a program of one process, without MPI: calls body and turns exceptions into one line on standard error
/// ("lockstep: error: text") and the exit code of their kind, 3 when it is not an Error. Programs of ranks:
/// run_program() in session.hpp.
int run_alone(const std::function<int()>& body) noexcept;

}  // namespace lockstep::comm
