// Runs under mpirun, on two ranks: one is late, and its timeline says so.
#include <gtest/gtest.h>
#include <mpi.h>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include "tests/comm/report_of_ranks.hpp"
#include "tests/nn/run/timeline_runs.hpp"
#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

TEST(TimelineMpi, NamesTheRankThatIsLate) {
  const auto grad = comm::make_mpi_communicator(MPI_COMM_WORLD);
  const auto control = comm::make_mpi_communicator(MPI_COMM_WORLD);
  const testing::TemporaryFolder folder;
  for (const bool overlap : {true, false}) {
    const TracedRun run{.file = folder / "trace.json", .slow_rank = 1, .overlap = overlap && grad->can_overlap()};
    const TracedOutcome outcome = run_traced(run, *grad, *control);
    if (grad->rank() == 0) {
      expect_late_rank(run, outcome);
    }
  }
}

}  // namespace
}  // namespace lockstep::nn

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
