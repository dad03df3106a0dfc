/* A solver of the heat equation u_t = r (u_xx + u_yy) that learns its own update while it runs.
 *
 *   heat2d            random fields: the update is found, to the last digits
 *   heat2d --f32      the same with a network in f32
 *   heat2d --sine     one sine mode only: the loss gets small too, but nine weights cannot be told from one mode; the
 *                     normal matrix says so, and the program ends with status 1
 *
 * The field is split by rows over the ranks (mpirun -np P; any P), each with a halo of one cell that the solver fills.
 * A sample is a row of the result with the three rows above it: the views below show lockstep the solver's array as it
 * is, so nothing is copied, and ranks with more rows count for more. The exact answer is the stencil [0 r 0; r 1-4r r;
 * 0 r 0]. */
#include <lockstep/lockstep_mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NX = 32, NY = 27, GUARD = 3, PITCH = NX + 2 + 2 * GUARD, STEPS = 200, CELLS = 9 };
static const double r = 0.2, canary = -777.25;

static int rank, ranks, rows; /* of this rank */
static int first_row;         /* of the whole field */

/* Cell (row, column) of this rank; -1 and rows, -1 and NX are the halo. Around that lie GUARD cells that nobody
 * touches. */
static size_t at(int row, int column) {
  return (size_t)((row + 1 + GUARD) * PITCH + column + 1 + GUARD);
}

static double* new_field(void) {
  const size_t cells = (size_t)(rows + 2 + 2 * GUARD) * PITCH;
  double* u = malloc(cells * sizeof *u);
  if (u == NULL) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (size_t i = 0; i < cells; ++i) {
    u[i] = canary;
  }
  return u;
}

/* Whether nothing outside the inside and a halo of `halo` cells was written. */
static int guards_are_whole(const double* u, int halo) {
  for (int row = -1 - GUARD; row < rows + 1 + GUARD; ++row) {
    for (int column = -1 - GUARD; column < NX + 1 + GUARD; ++column) {
      const int inside = row >= -halo && row < rows + halo && column >= -halo && column < NX + halo;
      if (!inside && u[at(row, column)] != canary) {
        return 0;
      }
    }
  }
  return 1;
}

/* A number in (-1, 1) for a cell and a step, the same for every number of ranks. */
static double draw(uint64_t i) {
  uint64_t x = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return (double)((x ^ (x >> 31)) >> 11) / 4503599627370496.0 - 1;
}

static void begin(double* u, int step, int sine) {
  const double two_pi = 6.283185307179586;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      const int y = first_row + row;
      u[at(row, column)] = sine ? sin(two_pi * column / NX) * sin(two_pi * y / NY) * (1 + draw((uint64_t)step))
                                : draw((uint64_t)((step * NY + y) * NX + column));
    }
  }
}

/* The halo: periodic, rows from the ranks above and below. */
static void exchange(double* u) {
  const int above = (rank + ranks - 1) % ranks, below = (rank + 1) % ranks;
  MPI_Sendrecv(&u[at(0, 0)], NX, MPI_DOUBLE, above, 0, &u[at(rows, 0)], NX, MPI_DOUBLE, below, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&u[at(rows - 1, 0)], NX, MPI_DOUBLE, below, 1, &u[at(-1, 0)], NX, MPI_DOUBLE, above, 1, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  for (int row = -1; row <= rows; ++row) {
    u[at(row, -1)] = u[at(row, NX - 1)];
    u[at(row, NX)] = u[at(row, 0)];
  }
}

static void solve(const double* u, double* next) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      next[at(row, column)] =
          u[at(row, column)] + r * (u[at(row - 1, column)] + u[at(row + 1, column)] + u[at(row, column - 1)] +
                                    u[at(row, column + 1)] - 4 * u[at(row, column)]);
    }
  }
}

/* Adds the products of each cell's nine neighbours: what is learned can be told apart when the matrix has rank nine. */
static void add_normal(const double* u, double normal[CELLS * CELLS]) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      for (int i = 0; i < CELLS; ++i) {
        for (int j = 0; j < CELLS; ++j) {
          normal[CELLS * i + j] +=
              u[at(row + i / 3 - 1, column + i % 3 - 1)] * u[at(row + j / 3 - 1, column + j % 3 - 1)];
        }
      }
    }
  }
}

/* By elimination with complete pivoting. */
static int rank_of(double m[CELLS * CELLS]) {
  double largest = 0;
  for (int done = 0; done < CELLS; ++done) {
    int row = done, column = done;
    for (int i = done; i < CELLS; ++i) {
      for (int j = done; j < CELLS; ++j) {
        if (fabs(m[CELLS * i + j]) > fabs(m[CELLS * row + column])) {
          row = i;
          column = j;
        }
      }
    }
    const double pivot = m[CELLS * row + column];
    largest = done == 0 ? fabs(pivot) : largest;
    if (!(fabs(pivot) > 1e-10 * largest)) {
      return done;
    }
    for (int k = 0; k < CELLS; ++k) {
      const double other = m[CELLS * row + k];
      m[CELLS * row + k] = m[CELLS * done + k];
      m[CELLS * done + k] = other;
    }
    for (int k = 0; k < CELLS; ++k) {
      const double other = m[CELLS * k + column];
      m[CELLS * k + column] = m[CELLS * k + done];
      m[CELLS * k + done] = other;
    }
    for (int i = done + 1; i < CELLS; ++i) {
      const double factor = m[CELLS * i + done] / m[CELLS * done + done];
      for (int k = done; k < CELLS; ++k) {
        m[CELLS * i + k] -= factor * m[CELLS * done + k];
      }
    }
  }
  return CELLS;
}

static void must(lockstep_status status) {
  if (status != LOCKSTEP_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, lockstep_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int sine = argc == 2 && strcmp(argv[1], "--sine") == 0, f32 = argc == 2 && strcmp(argv[1], "--f32") == 0;
  if (ranks > NY || (argc > 1 && !sine && !f32)) {
    fprintf(stderr, "heat2d [--sine | --f32], with at most %d ranks\n", NY);
    MPI_Finalize();
    return 2;
  }
  first_row = NY * rank / ranks;
  rows = NY * (rank + 1) / ranks - first_row;
  double *u = new_field(), *next = new_field(), *learned = new_field();

  /* A convolution of 3 x 3 without padding and bias: it needs the halo, and gives a row of the inside. */
  lockstep_context context;
  lockstep_comm comm;
  lockstep_model model;
  lockstep_trainer trainer;
  lockstep_trainer_options options;
  const int64_t sample[] = {3, NX + 2, 1};
  const int32_t input = 0;
  must(lockstep_context_create(NULL, &context));
  must(lockstep_comm_from_mpi(context, MPI_COMM_WORLD, &comm));
  must(lockstep_model_create(context, f32 ? LOCKSTEP_F32 : LOCKSTEP_F64, sample, 3, &model));
  must(lockstep_model_add(model, "conv2d", 0, "stencil", 0, &input, 1, 1, NULL, NULL));
  must(lockstep_model_initialise(model, 1));
  must(lockstep_trainer_options_init(&options, sizeof options));
  options.optimizer = LOCKSTEP_OPTIMIZER_SGD;
  options.momentum = 0;
  options.max_batch = rows;
  must(lockstep_trainer_create(model, comm, &options, &trainer));

  /* Row n of the result sees rows n, n + 1 and n + 2 of the array with its halo: the axes n and h go through memory
   * alike. */
  const int64_t windows[] = {rows, 3, NX + 2}, by_row[] = {PITCH, PITCH, 1}, inside[] = {rows, NX},
                pitch[] = {PITCH, 1};
  const lockstep_view in = {&u[at(-1, -1)], LOCKSTEP_F64, LOCKSTEP_CPU, 0, 3, windows, by_row, "nhw"};
  const lockstep_view target = {&next[at(0, 0)], LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, inside, pitch, "nw"};
  const lockstep_view out = {&learned[at(0, 0)], LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, inside, pitch, "nw"};
  double normal[CELLS * CELLS] = {0}, loss = 0;
  for (int step = 0; step < STEPS; ++step) {
    begin(u, step, sine);
    exchange(u);
    solve(u, next);
    add_normal(u, normal);
    must(lockstep_trainer_add(trainer, &in, &target, NULL, NULL));
    must(lockstep_trainer_update(trainer, sine ? 0.1 : 1.0)); /* neighbours of a smooth field are alike: steeper */
  }
  must(lockstep_trainer_loss(trainer, 1, &loss, NULL));
  must(lockstep_infer(model, &in, &out, NULL));

  double weight[CELLS], worst[2] = {0, 0};
  const double exact[CELLS] = {0, r, 0, r, 1 - 4 * r, r, 0, r, 0};
  const int64_t shape[] = {1, 1, 3, 3};
  const lockstep_view weights = {weight, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 4, shape, NULL, NULL};
  must(lockstep_parameter_read(model, "stencil.weight", 0, &weights));
  for (int i = 0; i < CELLS; ++i) {
    worst[0] = fmax(worst[0], fabs(weight[i] - exact[i]));
  }
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      worst[1] = fmax(worst[1], fabs(learned[at(row, column)] - next[at(row, column)]));
    }
  }
  int whole = guards_are_whole(u, 1) && guards_are_whole(next, 0) && guards_are_whole(learned, 0);
  MPI_Allreduce(MPI_IN_PLACE, worst, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &whole, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, normal, CELLS * CELLS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  const int told_apart = rank_of(normal);
  const double gate = f32 ? 1e-5 : 1e-10;
  const int good = worst[0] < gate && worst[1] < gate && whole && told_apart == CELLS;
  if (rank == 0) {
    printf(
        "%d ranks: loss %.1e, largest weight error %.1e, of the field %.1e; %d of %d weights can be told apart; "
        "memory outside the views %s\n",
        ranks, loss, worst[0], worst[1], told_apart, CELLS, whole ? "untouched" : "WRITTEN");
  }
  lockstep_context_destroy(context);
  lockstep_model_destroy(model);
  lockstep_trainer_destroy(trainer);
  lockstep_comm_destroy(comm);
  free(u);
  free(next);
  free(learned);
  MPI_Finalize();
  return good ? 0 : 1;
}
