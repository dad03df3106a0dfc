// Runs under mpirun, on two ranks. One rank is late, and the timeline must show the delay.

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include "tests/comm/mpi_test_main.hpp"
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
  return lockstep::comm::mpi_test_main(argc, argv);
}
