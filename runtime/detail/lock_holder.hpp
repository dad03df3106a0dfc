#pragma once

#include <string>

namespace lockstep {

/// Writes this process into the open lock file as its holder ("pid 4711 on node3, user 1000"), and replaces the old
/// text. Error messages show the text as long as `file` is open; the lock itself does not depend on it. Writes nothing
/// when the file cannot be written.
void write_lock_holder(int file) noexcept;
/// Reads the holder's text, at most 200 characters, printable ones only; "a process that is not known" when the file
/// has no text, or only that of an earlier holder.
[[nodiscard]] std::string read_lock_holder(int file);

}  // namespace lockstep
