#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

/// A guard band is a known pattern behind a block of host memory: whoever writes past the block changes the band.
inline constexpr std::size_t kGuardBandBytes = 256;

/// Whether this build of lockstep has guard bands behind workspaces by itself: one without NDEBUG, as Debug builds and
/// those of the sanitizer presets are.
[[nodiscard]] bool guards_workspaces();

/// Writes the pattern into the kGuardBandBytes bytes at `band`.
void write_guard_band(std::byte* band);
/// "wrote over 12 bytes, the first 3 bytes behind the end", or an empty text when the band is as it was written.
[[nodiscard]] std::string damage_of_guard_band(const std::byte* band);

}  // namespace lockstep
