#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

/// A guard band is a known pattern after a block of host memory: a write past the block changes the band.
inline constexpr std::size_t kGuardBandBytes = 256;

/// True when this build of lockstep adds guard bands after workspaces by itself: a build without NDEBUG, such as Debug
/// and the sanitizer presets.
[[nodiscard]] bool guards_workspaces();

/// Writes the pattern into the kGuardBandBytes bytes at `band`.
void write_guard_band(std::byte* band);
/// Returns "wrote over 12 bytes, the first 3 bytes behind the end", or an empty text when the band is unchanged.
[[nodiscard]] std::string damage_of_guard_band(const std::byte* band);

}  // namespace lockstep
