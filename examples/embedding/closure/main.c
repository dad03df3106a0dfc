/* Trains a closure, a term that a solver lacks, through this solver. Then uses the closure to find a state from
 * observations. The solver knows the advection of the Lorenz-96 system dx_k/dt = x_(k-1) (x_(k+1) - x_(k-2)) + c(x_k),
 * but not the closure c. The observations come from c(x) = -x + 8, so the right coefficients of c are known.
 *
 * A priori, c is fitted to the differences of observations that are 0.2 time units apart. A posteriori, the solver runs
 * from one observation to the next, and its adjoint gives the gradient of the misfit: lockstep's tapes differentiate c,
 * and this program differentiates the other terms. The last part is a variational assimilation (4D-Var). It keeps the
 * parameters of c constant and searches the state from which the solver meets observations of every second cell.
 *
 *   mpirun -np P closure      has the same members of the ensemble for any P up to 8; status 0: all answers are right
 */
#include <lockstep/lockstep_mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS 36
#define MEMBERS 8
#define STEPS 20 /* number of the solver's steps from one observation to the next */
#define DT 0.01
#define UPDATES 600
#define WINDOWS 4          /* number of windows in the assimilation */
#define STAGES (4 * STEPS) /* evaluations of c in one window, each of which takes a slot of the tape */

/* Ends the program after an error of a lockstep call. lockstep has already reported the error to all ranks. */
static void check(lockstep_status status) {
  if (status != LOCKSTEP_OK) {
    fprintf(stderr, "closure: %s\n", lockstep_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

/* A run of the solver from one observation to the next. A state has n numbers: CELLS for each member. */
typedef struct {
  lockstep_tape tape; /* NULL: c(x) = -x + 8, as in the true system */
  int keeps_slots;    /* 1: adjoint() and tangent() may run many times after solve() */
  int64_t n;
  double x[STAGES][MEMBERS * CELLS]; /* states at which c was evaluated */
  int64_t pass[STAGES];
} window;

static lockstep_view cells(double* values, const int64_t* n) {
  const lockstep_view view = {values, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, n, NULL, "n"};
  return view;
}

/* Returns the index of the cell that is `distance` cells after cell i in the ring of i's member. */
static int64_t cell(int64_t i, int64_t distance) {
  return i - i % CELLS + (i % CELLS + CELLS + distance) % CELLS;
}

/* Computes out = dx/dt at x, in stage `stage` of the window. */
static void tendency(window* w, int stage, const double* x, double* out) {
  memcpy(w->x[stage], x, (size_t)w->n * sizeof *x);
  if (w->tape != NULL) {
    const lockstep_view in = cells(w->x[stage], &w->n), closure = cells(out, &w->n);
    check(lockstep_tape_forward(w->tape, &in, &closure, &w->pass[stage], NULL));
  }
  for (int64_t i = 0; i < w->n; ++i) {
    out[i] = (w->tape != NULL ? out[i] : 8 - x[i]) + x[cell(i, -1)] * (x[cell(i, 1)] - x[cell(i, -2)]);
  }
}

/* Coefficients of the stages of the Runge-Kutta method of order 4. */
static const double kAhead[4] = {0, 0.5, 0.5, 1}, kWeight[4] = {1 / 6.0, 1 / 3.0, 1 / 3.0, 1 / 6.0};

/* Advances x by one window. */
static void solve(window* w, double* x) {
  for (int step = 0; step < STEPS; ++step) {
    double slope[MEMBERS * CELLS] = {0}, at[MEMBERS * CELLS], sum[MEMBERS * CELLS];
    memcpy(sum, x, (size_t)w->n * sizeof *x);
    for (int stage = 0; stage < 4; ++stage) {
      for (int64_t i = 0; i < w->n; ++i) {
        at[i] = x[i] + kAhead[stage] * DT * slope[i];
      }
      tendency(w, 4 * step + stage, at, slope);
      for (int64_t i = 0; i < w->n; ++i) {
        sum[i] += kWeight[stage] * DT * slope[i];
      }
    }
    memcpy(x, sum, (size_t)w->n * sizeof *x);
  }
}

/* Computes out = J^T g, with the Jacobian J of tendency() at stage `stage`. If keeps_slots is 0, this call also adds
 * the gradients of the parameters of c to the trainer's gradients, and frees the slot of the stage. */
static void adjoint_of_tendency(window* w, int stage, double* g, double* out) {
  const double* x = w->x[stage];
  const lockstep_view given = cells(g, &w->n), wanted = cells(out, &w->n);
  check((w->keeps_slots ? lockstep_tape_vjp : lockstep_tape_backward)(w->tape, w->pass[stage], &given, &wanted, NULL));
  for (int64_t i = 0; i < w->n; ++i) {
    out[cell(i, -1)] += g[i] * (x[cell(i, 1)] - x[cell(i, -2)]);
    out[cell(i, 1)] += g[i] * x[cell(i, -1)];
    out[cell(i, -2)] -= g[i] * x[cell(i, -1)];
  }
}

/* Turns a = dL/d(last state of the window) into dL/d(first state). */
static void adjoint(window* w, double* a) {
  static const double following[4] = {0.5, 0.5, 1, 0}; /* kAhead of the next stage; 0 after the last one */
  for (int step = STEPS; step-- > 0;) {
    double next[MEMBERS * CELLS] = {0}, g[MEMBERS * CELLS], sum[MEMBERS * CELLS];
    memcpy(sum, a, (size_t)w->n * sizeof *a);
    for (int stage = 4; stage-- > 0;) {
      for (int64_t i = 0; i < w->n; ++i) {
        g[i] = DT * (kWeight[stage] * a[i] + following[stage] * next[i]);
      }
      adjoint_of_tendency(w, 4 * step + stage, g, next);
      for (int64_t i = 0; i < w->n; ++i) {
        sum[i] += next[i];
      }
    }
    memcpy(a, sum, (size_t)w->n * sizeof *a);
  }
}

/* Turns v, a change of the first state of the window, into the change of the last state to first order. */
static void tangent(window* w, double* v) {
  for (int step = 0; step < STEPS; ++step) {
    double slope[MEMBERS * CELLS] = {0}, at[MEMBERS * CELLS], sum[MEMBERS * CELLS];
    memcpy(sum, v, (size_t)w->n * sizeof *v);
    for (int stage = 0; stage < 4; ++stage) {
      const double* x = w->x[4 * step + stage];
      for (int64_t i = 0; i < w->n; ++i) {
        at[i] = v[i] + kAhead[stage] * DT * slope[i];
      }
      const lockstep_view given = cells(at, &w->n), wanted = cells(slope, &w->n);
      check(lockstep_tape_jvp(w->tape, w->pass[4 * step + stage], &given, &wanted, NULL));
      for (int64_t i = 0; i < w->n; ++i) {
        slope[i] +=
            at[cell(i, -1)] * (x[cell(i, 1)] - x[cell(i, -2)]) + x[cell(i, -1)] * (at[cell(i, 1)] - at[cell(i, -2)]);
        sum[i] += kWeight[stage] * DT * slope[i];
      }
    }
    memcpy(v, sum, (size_t)w->n * sizeof *v);
  }
}

/* Fits c(x) = w x + b by least squares to (y - x) / 0.2 minus the advection at x, over all ranks. */
static void fit_a_priori(const double* x, const double* y, int64_t n, double coefficients[2]) {
  double sums[5] = {0}; /* sums of 1, x, x^2, t and x t, where t is the tendency of the closure */
  for (int64_t i = 0; i < n; ++i) {
    const double t = (y[i] - x[i]) / (STEPS * DT) - x[cell(i, -1)] * (x[cell(i, 1)] - x[cell(i, -2)]);
    const double terms[5] = {1, x[i], x[i] * x[i], t, x[i] * t};
    for (int k = 0; k < 5; ++k) {
      sums[k] += terms[k];
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, sums, 5, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  coefficients[0] = (sums[0] * sums[4] - sums[1] * sums[3]) / (sums[0] * sums[2] - sums[1] * sums[1]);
  coefficients[1] = (sums[3] - coefficients[0] * sums[1]) / sums[0];
}

static void read_number(lockstep_model model, const char* name, int32_t axes, double* number) {
  static const int64_t shape[] = {1, 1};
  const lockstep_view view = {number, LOCKSTEP_F64, LOCKSTEP_CPU, 0, axes, shape, NULL, NULL};
  check(lockstep_parameter_read(model, name, 0, &view));
}

/* Trains the model a posteriori, and reads its coefficients. x, y (n): observations at begin and end of the window. */
static void train_a_posteriori(lockstep_comm comm, lockstep_model model, window* w, const double* x, const double* y,
                               double coefficients[2]) {
  lockstep_trainer_options options;
  lockstep_tape_options tape;
  lockstep_trainer trainer;
  check(lockstep_trainer_options_init(&options, sizeof options));
  options.max_batch = 1;
  options.loss = LOCKSTEP_LOSS_GIVEN;
  check(lockstep_trainer_create(model, comm, &options, &trainer));
  check(lockstep_tape_options_init(&tape, sizeof tape));
  tape.max_batch = w->n;
  tape.slots = STAGES;
  check(lockstep_tape_create(model, &tape, &w->tape));
  double rate = 0.5;
  for (int update = 0; update < UPDATES; ++update, rate *= 0.99) {
    double state[MEMBERS * CELLS];
    memcpy(state, x, (size_t)w->n * sizeof *x);
    solve(w, state);
    for (int64_t i = 0; i < w->n; ++i) {
      state[i] = (state[i] - y[i]) / (MEMBERS * CELLS); /* dL/d(state); L: half the mean square misfit over all ranks */
    }
    adjoint(w, state);
    check(lockstep_trainer_update(trainer, rate)); /* sums the gradients over the ranks */
  }
  read_number(model, "1.weight", 2, &coefficients[0]);
  read_number(model, "1.bias", 1, &coefficients[1]);
  check(lockstep_tape_destroy(w->tape));
  check(lockstep_trainer_destroy(trainer));
}

/* Computes seen[k] = H M v for each window k. M is the tangent of the solver from the first state to the end of window
 * k. H selects every second cell. */
static void tangent_of_observations(window windows[WINDOWS], const double* v, double seen[WINDOWS][CELLS]) {
  double state[CELLS];
  memcpy(state, v, sizeof state);
  for (int k = 0; k < WINDOWS; ++k) {
    tangent(&windows[k], state);
    for (int i = 0; i < CELLS; ++i) {
      seen[k][i] = i % 2 == 0 ? state[i] : 0;
    }
  }
}

/* Computes g = M^T H^T seen. */
static void adjoint_of_observations(window windows[WINDOWS], double seen[WINDOWS][CELLS], double* g) {
  memset(g, 0, CELLS * sizeof *g);
  for (int k = WINDOWS; k-- > 0;) {
    for (int i = 0; i < CELLS; i += 2) {
      g[i] += seen[k][i];
    }
    adjoint(&windows[k], g);
  }
}

static double dot(const double* a, const double* b) {
  double sum = 0;
  for (int i = 0; i < CELLS; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

/* Searches the state x (CELLS) from which the solver meets the observations `seen`. Uses incremental 4D-Var (Courtier,
 * Thepaut and Hollingsworth 1994): Gauss-Newton steps, whose linear systems are solved by conjugate gradients. */
static void assimilate(lockstep_model model, window windows[WINDOWS], double seen[WINDOWS][CELLS], double* x) {
  lockstep_tape_options tape;
  check(lockstep_tape_options_init(&tape, sizeof tape));
  tape.pass = LOCKSTEP_PASS_INFER;
  tape.parameter_gradients = 0;
  tape.jvp = 1;
  tape.max_batch = CELLS;
  tape.slots = WINDOWS * STAGES;
  check(lockstep_tape_create(model, &tape, &windows[0].tape));
  for (int k = 0; k < WINDOWS; ++k) {
    windows[k].tape = windows[0].tape;
    windows[k].keeps_slots = 1;
    windows[k].n = CELLS;
  }
  double damping = 1; /* keeps the first steps short, as these are taken far from the answer (Levenberg 1944) */
  for (int outer = 0; outer < 16; ++outer, damping /= 4) {
    double state[CELLS], at_observations[WINDOWS][CELLS], r[CELLS], d[CELLS], a[CELLS], change[CELLS] = {0};
    memcpy(state, x, sizeof state);
    for (int k = 0; k < WINDOWS; ++k) {
      solve(&windows[k], state);
      for (int i = 0; i < CELLS; ++i) {
        at_observations[k][i] = seen[k][i] - state[i];
      }
    }
    adjoint_of_observations(windows, at_observations, r);
    memcpy(d, r, sizeof d);
    const double first = dot(r, r);
    for (int inner = 0; inner < CELLS && dot(r, r) > 1e-12 * first; ++inner) {
      tangent_of_observations(windows, d, at_observations);
      adjoint_of_observations(windows, at_observations, a);
      for (int i = 0; i < CELLS; ++i) {
        a[i] += damping * d[i];
      }
      const double before = dot(r, r), step = before / dot(d, a);
      for (int i = 0; i < CELLS; ++i) {
        change[i] += step * d[i];
        r[i] -= step * a[i];
      }
      const double beta = dot(r, r) / before;
      for (int i = 0; i < CELLS; ++i) {
        d[i] = r[i] + beta * d[i];
      }
    }
    for (int i = 0; i < CELLS; ++i) {
      x[i] += change[i];
    }
    check(lockstep_tape_release(windows[0].tape, -1));
  }
  check(lockstep_tape_destroy(windows[0].tape));
}

/* Returns the largest difference between a and b, or NaN if one of the differences is NaN. */
static double largest_difference(const double* a, const double* b, int64_t n) {
  double largest = 0;
  for (int64_t i = 0; i < n && !isnan(largest); ++i) {
    const double difference = fabs(a[i] - b[i]);
    largest = difference <= largest ? largest : difference;
  }
  return largest;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > MEMBERS) {
    fprintf(stderr, "closure: %d ranks, expected at most %d\n", ranks, MEMBERS);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  lockstep_context context;
  lockstep_comm comm;
  lockstep_model model;
  const int64_t widths[] = {1, 1};
  check(lockstep_context_create(NULL, &context));
  check(lockstep_comm_from_mpi(context, MPI_COMM_WORLD, &comm));
  check(lockstep_model_mlp(context, LOCKSTEP_F64, widths, 2, LOCKSTEP_ACTIVATION_NONE, &model));
  check(lockstep_model_initialise(model, 1));

  /* Each rank observes its members, after 10 time units that bring them onto the attractor. */
  static window truth, model_run, windows[WINDOWS];
  static double x[MEMBERS * CELLS], y[MEMBERS * CELLS];
  const int first = MEMBERS * rank / ranks;
  truth.n = (int64_t)(MEMBERS * (rank + 1) / ranks - first) * CELLS;
  for (int64_t i = 0; i < truth.n; ++i) {
    x[i] = 8 + sin(1.7 * (double)(first * CELLS + i));
  }
  for (int k = 0; k < 50; ++k) {
    solve(&truth, x);
  }
  memcpy(y, x, sizeof y);
  solve(&truth, y);
  model_run.n = truth.n;

  double before[2], after[2], seen[WINDOWS][CELLS], start[CELLS], found[CELLS];
  fit_a_priori(x, y, truth.n, before);
  train_a_posteriori(comm, model, &model_run, x, y, after);

  /* Each rank runs the assimilation for its first member. */
  truth.n = CELLS;
  memcpy(start, x, sizeof start);
  for (int i = 0; i < CELLS; ++i) {
    found[i] = start[i] + 0.5 * sin(5.0 * i); /* the first guess */
  }
  const double guess = largest_difference(found, start, CELLS);
  for (int k = 0; k < WINDOWS; ++k) {
    memcpy(seen[k], k > 0 ? seen[k - 1] : start, sizeof start);
    solve(&truth, seen[k]);
  }
  assimilate(model, windows, seen, found);
  double error = largest_difference(found, start, CELLS);
  int found_state = error < 1e-3; /* not of NaN */
  MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &found_state, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);

  if (rank == 0) {
    printf("truth:        c(x) = -1.0000 x + 8.0000\n");
    printf("a priori:     c(x) = %.4f x + %.4f\n", before[0], before[1]);
    printf("a posteriori: c(x) = %.4f x + %.4f\n", after[0], after[1]);
    printf("assimilation: the state's largest error was %.1e, and is %.1e\n", guess, error);
  }
  const int good = fabs(after[0] + 1) < 1e-3 && fabs(after[1] - 8) < 1e-2 && fabs(before[0] + 1) > 0.05 && found_state;
  check(lockstep_model_destroy(model));
  check(lockstep_comm_destroy(comm));
  check(lockstep_context_destroy(context));
  MPI_Finalize();
  return good ? 0 : 1;
}
