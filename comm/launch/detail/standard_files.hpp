#pragma once

namespace lockstep::comm::detail {

/// Opens closed standard input, output and error files, so that no other file or pipe gets their numbers and is taken
/// for them. Reading from and writing to them still fails.
void open_standard_files() noexcept;

/// In a child that becomes another program: replaces the files of open_standard_files() by /dev/null, because programs
/// (mpirun) may not expect that writing fails.
void give_null_files() noexcept;

/// Flushes stdout. WriteError with the system's reason when printed text could not be written.
void require_output_written();

}  // namespace lockstep::comm::detail
