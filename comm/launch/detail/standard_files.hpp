#pragma once

namespace lockstep::comm::detail {

/// Opens each of standard input, output and error that is closed. Otherwise a file or pipe that the process opens could
/// get descriptor 0, 1 or 2 and be used as a standard file. Reading and writing the standard file still fail, as if it
/// were closed.
void open_standard_files() noexcept;

/// Opens /dev/null in place of each file that open_standard_files() opened. Call this function in a child process that
/// is about to run another program, such as mpirun, which may not expect that writing fails.
void give_null_files() noexcept;

/// Flushes stdout. Throws WriteError, with the system's reason, if text that was printed could not be written.
void require_output_written();

}  // namespace lockstep::comm::detail
