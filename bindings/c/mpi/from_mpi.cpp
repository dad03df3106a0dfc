#include <lockstep/lockstep_mpi.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/stream.hpp>

// This library uses only the C interface of liblockstep, which gets MPI's functions in a lockstep_comm_ops.

namespace lockstep::c {
namespace {

/// The object to which lockstep_comm_ops::user points. The functions below receive this pointer as `user`.
struct Ranks {
  std::unique_ptr<comm::Communicator> communicator;
  Stream stream = Stream::host_inline();
  std::string text;  ///< text of the last function that failed
};

template <class Body>
std::int32_t guarded(void* user, Body&& body) noexcept {
  auto& ranks = *static_cast<Ranks*>(user);
  try {
    body(*ranks.communicator, ranks.stream);
    return 0;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const Failure failure = failure_of(error);
    try {
      ranks.text = failure.text;
    } catch (...) {
      ranks.text.clear();
    }
    return failure.status;
  }
}

TensorView bytes_at(void* data, std::int64_t bytes) {
  return {data, DType::u8, Device::cpu(), {bytes}};
}

std::int32_t all_reduce_sum(void* user, void* data, std::int64_t count, lockstep_dtype dtype) {
  return guarded(user, [&](comm::Communicator& communicator, Stream& stream) {
    communicator.all_reduce(stream, TensorView(data, dtype_from(dtype, "all_reduce_sum"), Device::cpu(), {count}));
  });
}

std::int32_t broadcast(void* user, void* data, std::int64_t bytes, std::int32_t root) {
  return guarded(user, [&](comm::Communicator& communicator, Stream& stream) {
    communicator.broadcast(stream, bytes_at(data, bytes), root);
  });
}

std::int32_t all_gather(void* user, const void* in, void* out, std::int64_t bytes) {
  return guarded(user, [&](comm::Communicator& communicator, Stream& stream) {
    communicator.all_gather(stream, bytes_at(const_cast<void*>(in), bytes), bytes_at(out, bytes * communicator.size()));
  });
}

std::int32_t barrier(void* user) {
  return guarded(user, [](comm::Communicator& communicator, Stream& stream) { communicator.barrier(stream); });
}

const char* error_text(void* user) {
  return static_cast<Ranks*>(user)->text.c_str();
}

void destroy(void* user) {
  delete static_cast<Ranks*>(user);
}

lockstep_status from_mpi(const char* name, lockstep_context context, MPI_Comm parent, lockstep_comm* comm) noexcept {
  lockstep_status status = LOCKSTEP_OK;
  std::string text;
  try {
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    require<StateError>(initialised != 0, "MPI is not initialised, expected MPI_Init before");
    require<StateError>(finalised == 0, "MPI was finalised, expected a call before MPI_Finalize");
    require<UsageError>(parent != MPI_COMM_NULL,
                        "the communicator is MPI_COMM_NULL, expected one with this rank in it");
    auto ranks = std::make_unique<Ranks>();
    ranks->communicator = comm::make_mpi_communicator(parent);
    const lockstep_comm_ops ops{.struct_size = sizeof(lockstep_comm_ops),
                                .flags = 0,
                                .user = ranks.get(),
                                .rank = ranks->communicator->rank(),
                                .size = ranks->communicator->size(),
                                .all_reduce_sum = all_reduce_sum,
                                .broadcast = broadcast,
                                .all_gather = all_gather,
                                .barrier = barrier,
                                .error_text = error_text,
                                .destroy = destroy};
    status = lockstep_comm_from_ops(context, &ops, comm);
    if (status == LOCKSTEP_OK) {
      static_cast<void>(ranks.release());  // destroy() will delete the object
      return status;
    }
    text = lockstep_last_error();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const Failure failure = failure_of(error);
    set_last_error(name, failure.text);
    return lockstep_error_set(failure.status, last_error(), 0);
  }
  set_last_error(name, text);
  return lockstep_error_set(status, last_error(), 0);
}

}  // namespace
}  // namespace lockstep::c

lockstep_status lockstep_comm_from_mpi(lockstep_context context, MPI_Comm parent, lockstep_comm* comm) noexcept {
  return lockstep::c::from_mpi("lockstep_comm_from_mpi", context, parent, comm);
}

lockstep_status lockstep_comm_from_mpi_f(lockstep_context context, int64_t fortran_comm, lockstep_comm* comm) noexcept {
  int initialised = 0;
  MPI_Initialized(&initialised);
  const bool fits = initialised != 0 && fortran_comm >= std::numeric_limits<MPI_Fint>::min() &&
                    fortran_comm <= std::numeric_limits<MPI_Fint>::max();
  const MPI_Comm parent = fits ? MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_comm)) : MPI_COMM_NULL;
  return lockstep::c::from_mpi("lockstep_comm_from_mpi_f", context, parent, comm);
}
