#pragma once

#include <string>

namespace lockstep {

/// Returns the version of lockstep, for example "0.1.0".
[[nodiscard]] std::string version();
/// Returns one line with the version, the compiler and the parts of the build:
/// "lockstep 0.1.0 (g++ 12.2.0; cuda off, nccl off, cudnn off, mpi on, gloo off, onednn on)".
[[nodiscard]] std::string build_description();

}  // namespace lockstep
