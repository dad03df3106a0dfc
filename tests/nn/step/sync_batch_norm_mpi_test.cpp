// Runs under mpirun. Trains a ResNet-20 for 20 steps with batch norm over all ranks, and compares the result with that
// of one rank.
#include "tests/nn/step/sync_batch_norm_runs.hpp"

#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include "tests/comm/mpi_test_main.hpp"

namespace lockstep::nn {
namespace {

SyncOutcome train(SyncRun run) {
  const auto grad = comm::make_mpi_communicator(MPI_COMM_WORLD);
  run.overlap = grad->can_overlap();
  const auto control = comm::make_mpi_communicator(MPI_COMM_WORLD);
  const auto statistics = comm::make_mpi_communicator(MPI_COMM_WORLD);
  return train_rank(run, *grad, *control, *statistics);
}

/// Rank 0 compares the results; the other ranks wait for rank 0 in the next collective. In f32, rounding may move a
/// value across the kink of a ReLU, which changes a gradient. A large learning rate would enlarge this difference, so
/// the rate in f32 is small.
TEST(SyncBatchNormMpi, ResNet20AfterTwentySteps) {
  const SyncRun f64{.depth = 20, .steps = 20, .batch = 31, .last = 15, .extent = 8, .rate = 5e-3};
  SyncRun f32 = f64;
  f32.dtype = DType::f32;
  f32.rate = 1e-4;
  f32.beside = false;  // statistics and gradients then use one communicator
  SyncRun control = f32;
  control.sync = false;
  const SyncOutcome several64 = train(f64);
  const SyncOutcome several32 = train(f32);
  const SyncOutcome own32 = train(control);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    const double error64 = distance(several64, train_alone(f64));
    const SyncOutcome one32 = train_alone(f32);
    const double error32 = distance(several32, one32);
    const double without = distance(own32, one32);
    std::printf("distance to one rank: f64 %.2g, f32 %.2g, with each rank's own statistics %.2g\n", error64, error32,
                without);
    EXPECT_TRUE(error64 <= 1e-12) << error64;
    EXPECT_TRUE(error32 <= 1e-4) << error32;
    EXPECT_GT(without, 1e-2);
  }
}

}  // namespace
}  // namespace lockstep::nn

int main(int argc, char** argv) {
  return lockstep::comm::mpi_test_main(argc, argv);
}
