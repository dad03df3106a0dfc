#include <lockstep/runtime/memory/guard_band.hpp>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

namespace {

/// Returns byte `i` of a guard band's pattern. Neighbouring bytes differ, so a shifted copy of a band also counts as
/// damage.
std::byte guard_byte(std::size_t i) {
  return static_cast<std::byte>(0xA5 ^ (i * 29 & 0xFF));
}

}  // namespace

bool guards_workspaces() {
#ifdef NDEBUG
  return false;
#else
  return true;
#endif
}

void write_guard_band(std::byte* band) {
  for (std::size_t i = 0; i < kGuardBandBytes; ++i) {
    band[i] = guard_byte(i);
  }
}

std::string damage_of_guard_band(const std::byte* band) {
  std::size_t damaged = 0;
  std::size_t first = 0;
  for (std::size_t i = kGuardBandBytes; i-- > 0;) {
    if (band[i] != guard_byte(i)) {
      ++damaged;
      first = i;
    }
  }
  return damaged == 0 ? std::string()
                      : concat("wrote over ", damaged, " bytes, the first ", first, " bytes after the end");
}

}  // namespace lockstep
