// This program runs under mpirun. It compares PowerSGD between processes with plain loops.
#include <cstdio>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <mpi.h>

#include "power_sgd_runs.hpp"

#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include "tests/comm/mpi_test_main.hpp"

namespace lockstep::comm {
namespace {

TEST(PowerSgdMpi, FollowsThePaper) {
  const auto communicator = make_mpi_communicator(MPI_COMM_WORLD);
  std::optional<Stream> worker;
  if (communicator->can_overlap()) {
    worker.emplace(Stream::host_worker("comm"));
  }
  Stream inline_stream = Stream::host_inline();
  for (const int rank : {1, 2, 4}) {
    for (Stream* comm : {&inline_stream, worker ? &*worker : &inline_stream}) {
      const double f64 = power_sgd_against_oracle<double>(*communicator, *comm, rank, 4000);
      EXPECT_TRUE(f64 <= 1e-10) << f64 << ", rank " << rank;
      const double f32 = power_sgd_against_oracle<float>(*communicator, *comm, rank, 4000);
      EXPECT_TRUE(f32 <= 1e-3) << f32 << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
  return lockstep::comm::mpi_test_main(argc, argv);
}
