#pragma once

#include <string>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::ops {

/// Who plans convolutions and matrix products on devices of this kind, and in which version: "lockstep 0.1.0, onednn
/// 3.1.1", sorted. What plan choices, and the times that were measured for them, hold for.
[[nodiscard]] std::string library_versions(DeviceKind kind);

}  // namespace lockstep::ops
