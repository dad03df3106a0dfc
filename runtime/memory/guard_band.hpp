#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

/// Size of a guard band, a known pattern after a block of host memory. A write past the block's end changes the band.
inline constexpr std::size_t kGuardBandBytes = 256;

/// Returns true if this build of lockstep itself adds guard bands after workspaces: a build without NDEBUG, such as
/// Debug and the sanitizer presets.
[[nodiscard]] bool guards_workspaces();

/// Writes a guard band's pattern into the kGuardBandBytes bytes at `band`.
void write_guard_band(std::byte* band);
/// Returns a description of the changes in a band: "wrote over 12 bytes, the first 3 bytes behind the end". Returns an
/// empty text if the band is unchanged.
[[nodiscard]] std::string damage_of_guard_band(const std::byte* band);

}  // namespace lockstep
