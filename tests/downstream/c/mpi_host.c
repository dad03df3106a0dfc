/* An MPI program in C. The ranks of MPI_COMM_WORLD agree on the largest rank through lockstep. */
#include <lockstep/lockstep_mpi.h>
#include <stdio.h>

int main(int argc, char** argv) {
  lockstep_context context = NULL;
  lockstep_comm ranks = NULL;
  int32_t rank = -1, size = -1, largest = -1;
  MPI_Init(&argc, &argv);
  if (lockstep_context_create(NULL, &context) != LOCKSTEP_OK ||
      lockstep_comm_from_mpi(context, MPI_COMM_WORLD, &ranks) != LOCKSTEP_OK ||
      lockstep_comm_rank(ranks, &rank, &size) != LOCKSTEP_OK ||
      lockstep_comm_agree(ranks, rank, &largest) != LOCKSTEP_OK) {
    fprintf(stderr, "%s\n", lockstep_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  printf("rank %d of %d, the last is %d\n", rank, size, largest);
  lockstep_comm_destroy(ranks);
  lockstep_context_destroy(context);
  MPI_Finalize();
  return 0;
}
