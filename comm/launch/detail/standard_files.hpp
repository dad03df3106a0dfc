#pragma once

namespace lockstep::comm::detail {

/// Opens those of standard input, output and error that are closed, so that no other file or pipe gets their numbers
/// and is taken for them. Reading from and writing to them still fails.
void open_standard_files() noexcept;

/// In a child that becomes another program: what open_standard_files() opened is /dev/null, as programs (mpirun) may
/// not expect writing to fail.
void give_null_files() noexcept;

/// Flushes stdout. WriteError with the system's reason when something that was printed could not be written.
void require_output_written();

}  // namespace lockstep::comm::detail
