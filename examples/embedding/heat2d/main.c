/* A solver of the heat equation u_t = r (u_xx + u_yy) that learns its own update while it runs. main.F90 is
 * the same program in Fortran, and main.cpp in C++ but without the checks. All three print the same numbers.
 *
 *   mpirun -np P heat2d        finds the stencil [0 r 0; r 1-4r r; 0 r 0] to the last digits, with any P; status 0
 *     --type f32               the network computes in f32
 *     --train half             half of the ranks train, the other ranks only solve
 *     --save FOLDER            saves the training state at step 400
 *     --load FOLDER            continues from that state, with any number of ranks
 *     --field sine             the field has one sine mode only. The loss gets small too, but one mode does not
 *                              determine nine weights: the rank of the normal matrix is below 9; status 1
 *     --halo wrong             fills the halo with the rank's own rows, as circular padding would. With one rank this
 *                              is right; with more ranks the loss does not fall; status 1
 *
 * The field is split by rows, and each rank's array has a halo that the solver fills. lockstep takes the array in
 * place, with its halo, as one sample. Ranks have different numbers of rows, so the weight of a sample is its number of
 * cells.
 */
#include <lockstep/lockstep_mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NX = 32, NY = 29, EDGE = 4, PITCH = NX + 2 * EDGE, STEPS = 600, SAVED = 400, CELLS = 9 };
static const double r = 0.2, pi = 3.141592653589793, canary = -777.25;

static int f32, sine, wrong_halo, half;  /* options */
static const char *save_to, *load_from;  /* folders of --save and --load; NULL: not given */
static MPI_Comm group;                   /* the ranks that share a field */
static int rank, ranks, rows, first_row; /* rank and size of the group; number and first of this rank's rows */

/* Returns the index of a cell of this rank. Rows -1 and `rows` and columns -1 and NX are the halo. Around the
 * halo are more cells, which nothing may touch. */
static size_t at(int row, int column) {
  return (size_t)((row + EDGE) * PITCH + column + EDGE);
}

static double* new_field(void) {
  const size_t cells = (size_t)(rows + 2 * EDGE) * PITCH;
  double* u = malloc(cells * sizeof *u);
  if (u == NULL) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (size_t i = 0; i < cells; ++i) {
    u[i] = canary;
  }
  return u;
}

/* Returns 1 if the only changed cells are those of this rank's part and of a halo of `halo` cells around it. */
static int untouched(const double* u, int halo) {
  for (int row = -EDGE; row < rows + EDGE; ++row) {
    for (int column = -EDGE; column < NX + EDGE; ++column) {
      const int inside = row >= -halo && row < rows + halo && column >= -halo && column < NX + halo;
      if (!inside && u[at(row, column)] != canary) {
        return 0;
      }
    }
  }
  return 1;
}

/* Returns a number in (-1, 1) that depends only on i, so the Fortran and C++ programs use the same numbers, with any
 * number of ranks. */
static double draw(int64_t i) {
  int64_t x = i + 99991;
  for (int k = 0; k < 4; ++k) {
    x = (x * x + i) % 2147483647;
  }
  return 2.0 * (double)x / 2147483647.0 - 1;
}

static void begin(double* u, int step, int one_mode) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      const int y = first_row + row;
      u[at(row, column)] =
          one_mode ? 2 * sin(2 * pi * column / NX) * sin(2 * pi * y / NY) : draw((step * NY + y) * NX + column);
    }
  }
}

/* Fills the halo of u. The field is periodic, and the ranks of `comm` have consecutive ranges of its rows. */
static void exchange(double* u, MPI_Comm comm) {
  int me = 0, size = 0;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &size);
  const int above = (me + size - 1) % size, below = (me + 1) % size;
  MPI_Sendrecv(&u[at(0, 0)], NX, MPI_DOUBLE, above, 0, &u[at(rows, 0)], NX, MPI_DOUBLE, below, 0, comm,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&u[at(rows - 1, 0)], NX, MPI_DOUBLE, below, 1, &u[at(-1, 0)], NX, MPI_DOUBLE, above, 1, comm,
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

/* Adds to the normal matrix, for each cell, the products of every two values in the cell's 3 x 3 neighbourhood. */
static void add_normal(const double* u, double normal[CELLS][CELLS]) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      for (int i = 0; i < CELLS; ++i) {
        for (int j = 0; j < CELLS; ++j) {
          normal[i][j] += u[at(row + i / 3 - 1, column + i % 3 - 1)] * u[at(row + j / 3 - 1, column + j % 3 - 1)];
        }
      }
    }
  }
}

/* Returns the rank of the normal matrix, by elimination from its largest diagonal element. The rank is the number of
 * weights, or of linear combinations of weights, that the fields determine. */
static int rank_of(double m[CELLS][CELLS]) {
  double largest = 0;
  for (int n = 0; n < CELLS; ++n) {
    int p = 0;
    for (int i = 1; i < CELLS; ++i) {
      p = m[i][i] > m[p][p] ? i : p;
    }
    largest = n == 0 ? m[p][p] : largest;
    if (!(m[p][p] > 1e-10 * largest)) {
      return n;
    }
    double before[CELLS][CELLS];
    memcpy(before, m, sizeof before);
    for (int i = 0; i < CELLS; ++i) {
      for (int j = 0; j < CELLS; ++j) {
        m[i][j] -= before[i][p] * before[p][j] / before[p][p];
      }
    }
  }
  return CELLS;
}

/* The allocator of this program; it counts the allocations. */
static void* take(void* count, size_t bytes, size_t alignment, lockstep_stream stream) {
  (void)stream;
  ++*(long*)count;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void give_back(void* count, void* memory, size_t bytes, lockstep_stream stream) {
  (void)count, (void)bytes, (void)stream;
  free(memory);
}

static void must(lockstep_status status) {
  if (status != LOCKSTEP_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, lockstep_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static double error_of(double have, double exact) {
  const double error = fabs(have - exact);
  return isfinite(error) ? error : INFINITY;
}

/* Trains a convolution while the solver runs. Returns 1 if the convolution has learned the solver's stencil. */
static int train(void) {
  double *u = new_field(), *next = new_field(), *learned = new_field();
  long taken = 0, taken_late = 0;
  const lockstep_allocator memory = {sizeof memory, 0, &taken, take, give_back};
  lockstep_context_options place;
  lockstep_trainer_options options;
  lockstep_context context;
  lockstep_comm comm;
  lockstep_model model;
  lockstep_trainer trainer;
  must(lockstep_context_options_init(&place, sizeof place));
  place.threads = 1;
  place.memory = &memory;
  must(lockstep_context_create(&place, &context));
  must(lockstep_comm_from_mpi(context, group, &comm));

  /* A convolution of 3 x 3 without padding and bias maps a field with its halo to the cells outside the halo. */
  const int64_t sample[] = {rows + 2, NX + 2, 1};
  const int32_t input = 0;
  must(lockstep_model_create(context, f32 ? LOCKSTEP_F32 : LOCKSTEP_F64, sample, 3, &model));
  must(lockstep_model_add(model, "conv2d", 0, "stencil", 0, &input, 1, 1, NULL, NULL));
  must(lockstep_model_initialise(model, 1));
  must(lockstep_model_prepare(model, 1));
  must(lockstep_trainer_options_init(&options, sizeof options));
  options.optimizer = LOCKSTEP_OPTIMIZER_SGD; /* SGD has momentum, which --save saves, too */
  options.weights = LOCKSTEP_WEIGHTS_SAMPLE;
  options.max_batch = 1;
  must(lockstep_trainer_create(model, comm, &options, &trainer));
  if (load_from != NULL) {
    must(lockstep_trainer_load(trainer, load_from, 0));
  }

  const int64_t whole[] = {rows + 2, NX + 2}, inside[] = {rows, NX}, strides[] = {PITCH, 1}, one[] = {1};
  const int first = load_from != NULL ? SAVED : 0;
  double cells = rows * NX, normal[CELLS][CELLS] = {{0}};
  const lockstep_view in = {&u[at(-1, -1)], LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, whole, strides, "hw"};
  const lockstep_view target = {&next[at(0, 0)], LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, inside, strides, "hw"};
  const lockstep_view out = {&learned[at(0, 0)], LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, inside, strides, "hw"};
  const lockstep_view weight = {&cells, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, one, NULL, "n"};
  for (int step = first; step < STEPS; ++step) {
    begin(u, step, sine);
    exchange(u, group);
    solve(u, next);
    if (wrong_halo) {
      exchange(u, MPI_COMM_SELF);
    }
    add_normal(u, normal);
    const long before = taken;
    must(lockstep_trainer_add(trainer, &in, &target, &weight, NULL));
    must(lockstep_trainer_update(trainer, 0.1));
    taken_late += step < first + 2 ? 0 : taken - before;
    if ((step + 1) % 100 == 0) {
      double loss = 0;
      must(lockstep_trainer_loss(trainer, 1, &loss, NULL));
      loss *= cells / (NX * NY); /* this rank's part of the mean over all cells */
      MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, group);
      if (rank == 0) {
        printf("step %d: loss %.10e\n", step + 1, loss);
      }
    }
    if (save_to != NULL && step + 1 == SAVED) {
      must(lockstep_trainer_save(trainer, save_to, 0));
    }
  }
  must(lockstep_infer(model, &in, &out, NULL));

  const double exact[CELLS] = {0, r, 0, r, 1 - 4 * r, r, 0, r, 0};
  const int64_t shape[] = {1, 1, 3, 3};
  double w[CELLS], error[2] = {0, 0}; /* largest error of a weight, and of a cell of the field */
  const lockstep_view weights = {w, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 4, shape, NULL, NULL};
  must(lockstep_parameter_read(model, "stencil.weight", 0, &weights));
  for (int i = 0; i < CELLS; ++i) {
    error[0] = fmax(error[0], error_of(w[i], exact[i]));
  }
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      error[1] = fmax(error[1], error_of(learned[at(row, column)], next[at(row, column)]));
    }
  }
  long bad[2] = {!untouched(u, 1) + !untouched(next, 0) + !untouched(learned, 0), taken_late};
  MPI_Allreduce(MPI_IN_PLACE, error, 2, MPI_DOUBLE, MPI_MAX, group);
  MPI_Allreduce(MPI_IN_PLACE, bad, 2, MPI_LONG, MPI_SUM, group);
  MPI_Allreduce(MPI_IN_PLACE, normal, CELLS * CELLS, MPI_DOUBLE, MPI_SUM, group);
  const double gate = f32 ? 1e-5 : 1e-10;
  const int told_apart = rank_of(normal), good = error[0] < gate && error[1] < gate && told_apart == CELLS;
  if (rank == 0) {
    for (int i = 0; i < CELLS; i += 3) {
      printf("%20.16f%20.16f%20.16f\n", w[i], w[i + 1], w[i + 2]);
    }
    printf("%d ranks, %s: largest error of a weight %.1e, of the field %.1e\n", ranks, f32 ? "f32" : "f64", error[0],
           error[1]);
    printf("%d of 9 weights can be told apart; %ld arrays written outside the views; %ld allocations after step 2\n",
           told_apart, bad[0], bad[1]);
    puts(good                 ? "the stencil is learned"
         : told_apart < CELLS ? "NOT learned: the fields do not tell the weights apart"
                              : "NOT learned: the solver sees something that the network does not");
  }
  must(lockstep_context_destroy(context)); /* in any order */
  must(lockstep_model_destroy(model));
  must(lockstep_trainer_destroy(trainer));
  must(lockstep_comm_destroy(comm));
  free(u);
  free(next);
  free(learned);
  return good && bad[0] == 0 && bad[1] == 0;
}

/* Runs the solver on the ranks that do not train. Their field is a single sine mode, which the numerical scheme
 * multiplies by a known factor in each step. Returns 1 if the final field agrees with this factor. */
static int go_on(void) {
  const double a = sin(pi / NX), b = sin(pi / NY), decay = pow(1 - 4 * r * (a * a + b * b), STEPS);
  double *u = new_field(), *next = new_field(), *start = new_field(), error = 0;
  begin(start, 0, 1);
  begin(u, 0, 1);
  for (int step = 0; step < STEPS; ++step) {
    exchange(u, group);
    solve(u, next);
    double* last = u;
    u = next;
    next = last;
  }
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < NX; ++column) {
      error = fmax(error, error_of(u[at(row, column)] / decay, start[at(row, column)]));
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_DOUBLE, MPI_MAX, group);
  if (rank == 0) {
    printf("%d other ranks solved %d steps meanwhile: largest error %.1e\n", ranks, STEPS, error);
  }
  free(u);
  free(next);
  free(start);
  return error < 1e-9;
}

static int is(char** argument, const char* name, const char* value) {
  return strcmp(argument[0], name) == 0 && (value == NULL || strcmp(argument[1], value) == 0);
}

int main(int argc, char** argv) {
  int level = 0, me = 0, size = 0, i = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (; i + 1 < argc; i += 2) {
    if (is(&argv[i], "--type", "f32")) {
      f32 = 1;
    } else if (is(&argv[i], "--train", "half")) {
      half = 1;
    } else if (is(&argv[i], "--field", "sine")) {
      sine = 1;
    } else if (is(&argv[i], "--halo", "wrong")) {
      wrong_halo = 1;
    } else if (is(&argv[i], "--save", NULL)) {
      save_to = argv[i + 1];
    } else if (is(&argv[i], "--load", NULL)) {
      load_from = argv[i + 1];
    } else {
      break;
    }
  }
  if (i < argc || size > NY) {
    fprintf(stderr,
            "heat2d [--type f32] [--train half] [--save FOLDER] [--load FOLDER] [--field sine] [--halo wrong], "
            "with at most %d ranks\n",
            NY);
    MPI_Finalize();
    return 2;
  }
  const int trains = !half || me % 2 == 0;
  MPI_Comm_split(MPI_COMM_WORLD, trains, me, &group);
  MPI_Comm_rank(group, &rank);
  MPI_Comm_size(group, &ranks);
  first_row = NY * rank / ranks;
  rows = NY * (rank + 1) / ranks - first_row;
  int good = trains ? train() : go_on();
  MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Comm_free(&group);
  MPI_Finalize();
  return good ? 0 : 1;
}
