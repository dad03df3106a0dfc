#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <mpi.h>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

/// Throws MpiError unless `rc` is MPI_SUCCESS. The error's text is `op`, `parts` and MPI's own text.
template <class... Parts>
void check_mpi(int rc, std::string_view op, const Parts&... parts) {
  if (rc != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(rc, text, &length);
    throw MpiError(concat(op, parts..., ": ", std::string_view(text, static_cast<std::size_t>(length))));
  }
}

[[nodiscard]] std::string_view name_of_level(int level);  ///< name of MPI's thread level: "serialized" or the like

/// Most elements of one MPI call. MPI counts elements as int, and some libraries multiply the count by the number of
/// ranks.
inline constexpr std::int64_t kMostPerCall = std::int64_t{1} << 30;

/// Makes a communicator like the public make_mpi_communicator(), but with at most `most_per_call` elements in one MPI
/// call, so that tests can split small tensors. Throws UsageError unless 1 <= most_per_call <= kMostPerCall.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options,
                                                                  std::int64_t most_per_call);

}  // namespace lockstep::comm::detail
