#pragma once

#include <string>

namespace lockstep {

/// "0.1.0"
[[nodiscard]] std::string version();
/// One line: version, compiler, and what the build has:
/// "lockstep 0.1.0 (g++ 12.2.0; cuda off, nccl off, mpi on, gloo off, onednn on)".
[[nodiscard]] std::string build_description();

}  // namespace lockstep
