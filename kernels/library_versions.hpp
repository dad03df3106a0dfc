#pragma once

#include <string>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::ops {

/// Returns the providers of convolutions and matrix products on devices of this kind, with their versions, sorted:
/// "lockstep 0.1.0, onednn 3.1.1". On the host, a build with several variants of the host kernels also names the
/// variant in use: "lockstep 0.1.0 x86-64-v4". Stored choices of plans, and stored times of these choices, are valid
/// for these versions only.
[[nodiscard]] std::string library_versions(DeviceKind kind);

}  // namespace lockstep::ops
