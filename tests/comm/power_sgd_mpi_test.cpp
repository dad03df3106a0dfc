// Runs under mpirun: PowerSGD between processes, against the oracle of plain loops.
#include <cstdio>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <mpi.h>

#include "power_sgd_runs.hpp"
#include "report_of_ranks.hpp"

#include <lockstep/comm/mpi/mpi_communicator.hpp>

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
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  ::testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  lockstep::comm::report_of_rank(rank);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
