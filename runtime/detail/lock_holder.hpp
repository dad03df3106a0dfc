#pragma once

#include <string>

namespace lockstep {

/// Who holds the lock on an open file, for messages only: kept in the file as "pid 4711 on node3, user 1000".
/// Says that this process does, in place of what was there; nothing where the file cannot be written.
void write_lock_holder(int file) noexcept;
/// What the holder wrote, printable characters only, at most 200; "a process that is not known" where that is nothing.
[[nodiscard]] std::string read_lock_holder(int file);

}  // namespace lockstep
