#pragma once

#include <memory>

#include <mpi.h>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Collective over the caller's communicator, which is duplicated (MPI_Comm_dup) and given an error handler of its own
/// (MPI_ERRORS_RETURN); the caller's is not touched. MPI must be initialised. Tensors on the CPU.
///
/// The thread level that MPI was initialised with decides where calls run:
///   MULTIPLE            on the stream that an operation is given
///   SERIALIZED          on `serial`, a host worker through which all MPI of the process goes; events order the
///                       operation's stream and the worker. StateError when `serial` is missing or inline
///   FUNNELED, SINGLE    on inline streams only; can_overlap() is false
/// The duplicate is freed by the destructor (collective) or, if the program forgot, when MPI is finalised.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, Stream* serial = nullptr);

}  // namespace lockstep::comm
