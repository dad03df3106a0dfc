#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <mpi.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

/// Throws MpiError unless `rc` is MPI_SUCCESS. The text has `op`, the given parts and MPI's own text.
template <class... Parts>
void check_mpi(int rc, std::string_view op, const Parts&... parts) {
  if (rc != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(rc, text, &length);
    throw MpiError(concat(op, parts..., ": ", std::string_view(text, static_cast<std::size_t>(length))));
  }
}

[[nodiscard]] std::string_view name_of_level(int level);  ///< returns "serialized" and so on

/// Most elements of one MPI call. Counts are int, and implementations multiply them by the number of ranks.
inline constexpr std::int64_t kMostPerCall = std::int64_t{1} << 30;

/// Makes a communicator like make_mpi_communicator(), with another limit, so that tests can split small tensors.
/// UsageError unless most_per_call >= 1.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options,
                                                                  std::int64_t most_per_call);

}  // namespace lockstep::comm::detail
