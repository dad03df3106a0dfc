// Tests the C interface in an MPI program: communicators of the program, training on half of the ranks, errors on one
// rank, and handles that are destroyed after MPI_Finalize.
#include <optional>

#include <mpi.h>

#include <lockstep/lockstep_mpi.h>

#include "../../comm/report_of_ranks.hpp"
#include "host.hpp"

namespace host {
namespace {

int world_rank = 0;
int world_size = 1;

/// Handles that check_after_finalise() uses and destroys after MPI_Finalize.
lockstep_context forgotten_context = nullptr;
lockstep_comm forgotten_comm = nullptr;
lockstep_trainer forgotten_trainer = nullptr;

bool is_fatal(MPI_Comm comm) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(comm, &handler);
  const bool fatal = handler == MPI_ERRORS_ARE_FATAL;
  MPI_Errhandler_free(&handler);
  return fatal;
}

struct MpiComm : Comm {
  MpiComm(lockstep_context context, MPI_Comm ranks) {
    EXPECT_TRUE(ok(lockstep_comm_from_mpi(context, ranks, operator&())));
  }
};

/// A model y = w x + b, with a trainer for plain gradient descent.
struct Line {
  HostContext context;
  MpiComm comm;
  Mlp model{context, {1, 1}};
  NewTrainer trainer{model, comm, descent(4)};

  explicit Line(MPI_Comm ranks) : comm(context, ranks) { EXPECT_TRUE(ok(lockstep_trainer_broadcast(trainer, 0))); }
  lockstep_status add(double x, double y) { return host::add(trainer, View(&x, {1, 1}), View(&y, {1, 1})); }
  double weight() { return parameter(model, "1.weight", {1, 1})[0]; }
  double bias() { return parameter(model, "1.bias", {1})[0]; }
};

TEST(Mpi, RanksTakeTheStepOfAllTheirSamples) {
  Line line(MPI_COMM_WORLD);
  double w = line.weight();
  double b = line.bias();
  for (int step = 0; step < 5; ++step) {
    const auto x = [&](int rank, int i) { return draw(static_cast<std::uint64_t>(100 * step + 10 * rank + i)); };
    // Rank r has r + 1 samples of y = 3 x - 1. The loop computes the expected gradient over the samples of all ranks.
    double dw = 0, db = 0;
    int samples = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      for (int i = 0; i <= rank; ++i, ++samples) {
        const double error = w * x(rank, i) + b - (3 * x(rank, i) - 1);
        dw += 2 * error * x(rank, i);
        db += 2 * error;
      }
    }
    for (int i = 0; i <= world_rank; ++i) {
      ASSERT_TRUE(ok(line.add(x(world_rank, i), 3 * x(world_rank, i) - 1)));
    }
    ASSERT_TRUE(ok(lockstep_trainer_update(line.trainer, 0.1)));
    w -= 0.1 * dw / samples;
    b -= 0.1 * db / samples;
    EXPECT_NEAR(line.weight(), w, 1e-13);
    EXPECT_NEAR(line.bias(), b, 1e-13);
    double all[2] = {line.weight(), -line.weight()};
    MPI_Allreduce(MPI_IN_PLACE, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    EXPECT_EQ(all[0], -all[1]) << "ranks differ";
  }
  EXPECT_TRUE(is_fatal(MPI_COMM_WORLD));
}

// Half of the ranks train, while the other ranks communicate through their own communicator.
TEST(Mpi, HalfOfTheRanksTrain) {
  const bool trains = world_rank % 2 == 0;
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, trains ? 0 : 1, world_rank, &half);
  if (trains) {
    Line line(half);
    std::int32_t rank = -1, size = -1;
    ASSERT_TRUE(ok(lockstep_comm_rank(line.comm, &rank, &size)));
    EXPECT_EQ(size, (world_size + 1) / 2);
    for (int step = 0; step < 300; ++step) {
      const double x = draw(static_cast<std::uint64_t>(step * world_size + world_rank));
      ASSERT_TRUE(ok(line.add(x, 2 * x + 1)));
      ASSERT_TRUE(ok(lockstep_trainer_update(line.trainer, 0.2)));
    }
    EXPECT_NEAR(line.weight(), 2, 1e-4);
    EXPECT_NEAR(line.bias(), 1, 1e-4);
  } else {
    int count = 0;
    for (int i = 0; i < 50; ++i) {
      int one = 1;
      MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, half);
      count += one;
    }
    EXPECT_EQ(count, 50 * (world_size / 2));
  }
  EXPECT_TRUE(is_fatal(half));
  MPI_Comm_free(&half);
}

TEST(Mpi, ARankThatFailsAloneIsAgreedUpon) {
  Line line(MPI_COMM_WORLD);
  const int odd = world_size - 1;
  if (world_rank != odd) {
    ASSERT_TRUE(ok(line.add(1, 1)));
  }
  const lockstep_status status = lockstep_trainer_update(line.trainer, 0.1);
  if (world_rank == odd) {
    EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, status, {"nothing was added"}));
    ASSERT_TRUE(ok(line.add(1, 1)));
  } else {
    EXPECT_TRUE(fails(LOCKSTEP_ERR_PEER, status, {"agreed: rank " + std::to_string(odd) + ": STATE"}));
  }
  EXPECT_TRUE(ok(lockstep_trainer_update(line.trainer, 0.1)));
  // Only one rank passes an invalid context, but all ranks get an error.
  Comm none;
  const lockstep_status made = lockstep_comm_from_mpi(
      world_rank == odd ? nullptr : static_cast<lockstep_context>(line.context), MPI_COMM_WORLD, &none);
  EXPECT_TRUE(fails(world_rank == odd ? LOCKSTEP_ERR_INVALID : LOCKSTEP_ERR_PEER, made,
                    {"lockstep_comm_from_mpi", "the context is NULL"}));
}

/// Expects that the parameters of `model` are equal on all ranks.
void expect_the_same(lockstep_model model) {
  double both[] = {parameter(model, "1.weight", {1, 1})[0], parameter(model, "1.bias", {1})[0]};
  double all[4] = {both[0], both[1], -both[0], -both[1]};
  MPI_Allreduce(MPI_IN_PLACE, all, 4, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  EXPECT_EQ(all[0], -all[2]);
  EXPECT_EQ(all[1], -all[3]);
}

TEST(Mpi, RanksThatDoNotTrainGetTheModel) {
  const bool trains = world_rank % 2 == 0;
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, trains ? 0 : 1, world_rank, &half);
  {
    const HostContext context;
    const MpiComm world(context, MPI_COMM_WORLD);
    std::optional<Line> line;
    // Model of the ranks that do not train.
    const Mlp other(context, {1, 1}, LOCKSTEP_F64, static_cast<std::uint64_t>(world_rank + 2));
    if (trains) {
      line.emplace(half);
      ASSERT_TRUE(ok(line->add(1, 5)));
      ASSERT_TRUE(ok(lockstep_trainer_update(line->trainer, 0.2)));
    }
    const lockstep_model model = trains ? line->model : other;
    ASSERT_TRUE(ok(lockstep_model_broadcast(model, world, 0)));
    expect_the_same(model);
    if (trains) {
      EXPECT_TRUE(ok(lockstep_trainer_check(line->trainer)));
    }
  }
  MPI_Comm_free(&half);
}

// Each rank has its own samples. Without sync_batch_norm, running statistics are averaged over the ranks by
// lockstep_trainer_average(). With sync_batch_norm, they are computed over the samples of all ranks.
TEST(Mpi, RunningStatisticsAreThoseOfAllRanks) {
  double found[2] = {0, 0};
  for (const std::int32_t sync : {0, 1}) {
    const HostContext context;
    const MpiComm world(context, MPI_COMM_WORLD);
    const NewModel model(context, LOCKSTEP_F64, {1});
    std::int32_t node = 0;
    add_layer(model, "batch_norm", "bn", node);
    ASSERT_TRUE(ok(lockstep_model_initialise(model, 1)));
    lockstep_trainer_options options = trainer_options(2);
    options.sync_batch_norm = sync;
    const NewTrainer trainer(model, world, options);
    double at = 3, result = 0;
    const View point(&at, {1, 1}), out(&result, {1, 1});
    ASSERT_TRUE(ok(add(trainer, {1.0 + world_rank, 5}, {0, 1})));
    ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 0.0)));
    if (sync == 0 && world_size > 1) {
      EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, infer(model, point, out), {"lockstep_trainer_average"}));
      ASSERT_TRUE(ok(lockstep_trainer_average(trainer)));
    }
    ASSERT_TRUE(ok(infer(model, point, out)));
    // Expected statistics: the mean over all samples, and either the mean of the ranks' variances or the variance over
    // all samples (sync_batch_norm).
    double mean = 0, variance = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      mean += (1.0 + rank + 5) / 2 / world_size;
      variance += (4.0 - rank) * (4.0 - rank) / 2 / world_size;
    }
    if (sync == 1) {
      variance = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        variance += ((1.0 + rank - mean) * (1.0 + rank - mean) + (5 - mean) * (5 - mean)) / (2 * world_size - 1);
      }
    }
    EXPECT_NEAR(result, (3 - 0.1 * mean) / std::sqrt(0.9 + 0.1 * variance + 1e-5), 1e-12);
    found[sync] = result;
  }
  EXPECT_EQ(found[0] == found[1], world_size == 1) << "the control";
}

TEST(Mpi, RanksThatDifferAreFoundOut) {
  const HostContext context;
  const MpiComm world(context, MPI_COMM_WORLD);
  const Mlp model(context, {1, 1}, LOCKSTEP_F64, static_cast<std::uint64_t>(world_rank + 1));
  const lockstep_trainer_options options = trainer_options(1);
  Trainer trainer;
  const lockstep_status made = lockstep_trainer_create(model, world, &options, &trainer);
  if (world_size > 1) {
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, made, {"lockstep_model_broadcast"}));
    ASSERT_TRUE(ok(lockstep_model_broadcast(model, world, world_size - 1)));
    ASSERT_TRUE(ok(lockstep_trainer_create(model, world, &options, &trainer)));
  }
  expect_the_same(model);
  ASSERT_TRUE(ok(add(trainer, {0.0}, {0.0})));
  if (world_size > 1) {  // an error, because the ranks make different collective calls
    const lockstep_status status =
        world_rank == 0 ? lockstep_trainer_update(trainer, 0.1) : lockstep_trainer_average(trainer);
    EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, status, {"lockstep_trainer_update", "lockstep_trainer_average"}));
  }
  EXPECT_TRUE(ok(lockstep_trainer_update(trainer, 0.1)));
  EXPECT_EQ(report_of(trainer).samples, world_size);
  const double value = world_rank;
  ASSERT_TRUE(ok(write(model, "1.bias", View(&value, {1}))));
  const lockstep_status same = lockstep_trainer_check(trainer);
  if (world_size > 1) {
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, same, {"'1.bias'", "1"}));
  } else {
    EXPECT_TRUE(ok(same));
  }
}

TEST(Mpi, FortranHandles) {
  const HostContext context;
  Comm comm;
  ASSERT_TRUE(ok(lockstep_comm_from_mpi_f(context, MPI_Comm_c2f(MPI_COMM_SELF), &comm)));
  std::int32_t rank = -1, size = -1;
  ASSERT_TRUE(ok(lockstep_comm_rank(comm, &rank, &size)));
  EXPECT_EQ(size, 1);
  Comm none;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_comm_from_mpi_f(context, std::int64_t{1} << 40, &none),
                    {"lockstep_comm_from_mpi_f", "MPI_COMM_NULL"}));
  EXPECT_TRUE(is(LOCKSTEP_ERR_INVALID, lockstep_comm_from_mpi(context, MPI_COMM_NULL, &none)));
}

TEST(Mpi, ForgottenHandlesOutliveIt) {
  Line line(MPI_COMM_WORLD);
  ASSERT_TRUE(ok(line.add(1, 1)));
  forgotten_context = line.context.release();
  forgotten_comm = line.comm.release();
  forgotten_trainer = line.trainer.release();
}

/// After MPI_Finalize, calls return LOCKSTEP_ERR_STATE, and every handle can still be destroyed.
void check_after_finalise() {
  std::int32_t largest = 0;
  if (world_size > 1) {
    EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_trainer_update(forgotten_trainer, 0.1), {"MPI was finalised"}));
  }
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_comm_agree(forgotten_comm, 1, &largest), {"MPI was finalised"}));
  lockstep_comm none = nullptr;
  EXPECT_TRUE(fails(LOCKSTEP_ERR_STATE, lockstep_comm_from_mpi(forgotten_context, MPI_COMM_WORLD, &none),
                    {"MPI was finalised"}));
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(ok(lockstep_comm_destroy(forgotten_comm)));
  EXPECT_TRUE(ok(lockstep_context_destroy(forgotten_context)));
  EXPECT_TRUE(ok(lockstep_trainer_destroy(forgotten_trainer)));
}

}  // namespace
}  // namespace host

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &host::world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &host::world_size);
  ::testing::InitGoogleTest(&argc, argv);
  lockstep::comm::report_of_rank(host::world_rank);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  host::check_after_finalise();
  return failed != 0 || ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
