#pragma once

namespace lockstep::comm::detail {

/// Opens standard input, output and error if they are closed, so that no other file or pipe gets their numbers and is
/// taken for them. Reading from them and writing to them still fails.
void open_standard_files() noexcept;

/// Replaces the files of open_standard_files() by /dev/null, in a child that becomes another program. Programs (mpirun)
/// may not expect that writing fails.
void give_null_files() noexcept;

/// Flushes stdout. Throws WriteError with the system's reason if printed text could not be written.
void require_output_written();

}  // namespace lockstep::comm::detail
