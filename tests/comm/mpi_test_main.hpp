#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include "tests/comm/report_of_ranks.hpp"

namespace lockstep::comm {

/// The main() of a GoogleTest program under mpirun. Uses MPI_THREAD_MULTIPLE if MPI supports it. The program fails on
/// every rank if a test fails on any rank.
inline int mpi_test_main(int& argc, char**& argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  ::testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  report_of_rank(rank);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}

}  // namespace lockstep::comm
