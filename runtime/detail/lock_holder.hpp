#pragma once

#include <string>

namespace lockstep {

/// Writes this process into the open lock file as its holder ("pid 4711 on node3, user 1000"), in place of the old
/// text. Other processes show the text in errors as long as `file` is open; the lock itself does not depend on the
/// text. Writes nothing if the file cannot be written.
void write_lock_holder(int file) noexcept;
/// Reads the text about the holder: at most 200 characters, only printable ones. Returns "a process that is not known"
/// if the file has no text, or only the text of an earlier holder.
[[nodiscard]] std::string read_lock_holder(int file);

}  // namespace lockstep
