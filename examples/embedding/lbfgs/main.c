/* Trains a network with an optimizer that this program implements: L-BFGS (Nocedal and Wright, "Numerical
 * Optimization", 2006, algorithms 7.4 and 3.1) over vectors of parameters and gradients. The network learns the
 * function y = sin(3 a) exp(-b^2). Each rank has its own samples; lockstep sums the ranks' gradients. For comparison,
 * the program also prints the result of Adam with as many evaluations.
 *
 *   mpirun -np 3 lbfgs
 */
#include <lockstep/lockstep_mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVALUATIONS 400 /* number of evaluations of the loss and its gradients, each over the samples of all ranks */
#define PAIRS 30        /* largest number of pairs (step, change of the gradient) that L-BFGS keeps */
#define FEATURES 2

/* Ends all ranks if a call of lockstep has failed. */
static void check(lockstep_status status) {
  if (status != LOCKSTEP_OK) {
    fprintf(stderr, "lbfgs: %s\n", lockstep_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

typedef struct {
  lockstep_model model;
  lockstep_trainer trainer;
  lockstep_view in, target;
  int64_t parameters;
  int evaluations;
} problem;

static lockstep_view vector(const double* values, const int64_t* n) {
  const lockstep_view view = {(void*)values, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, n, NULL, NULL};
  return view;
}

/* Returns the mean loss over the samples of all ranks at parameters x (n), and its gradients g (n). Every rank gets the
 * same bits, so L-BFGS takes the same steps on all ranks. */
static double evaluate(problem* p, const double* x, double* g) {
  const lockstep_view values = vector(x, &p->parameters), gradients = vector(g, &p->parameters);
  lockstep_report report = {.struct_size = sizeof report};
  check(lockstep_parameters_write(p->model, LOCKSTEP_WITHOUT_STATISTICS, &values));
  check(lockstep_trainer_add(p->trainer, &p->in, &p->target, NULL, NULL));
  check(lockstep_trainer_reduce(p->trainer, NULL));
  check(lockstep_trainer_report(p->trainer, &report));
  check(lockstep_gradients_read(p->trainer, &gradients));
  check(lockstep_trainer_abandon(p->trainer)); /* not lockstep_trainer_apply: L-BFGS sets the parameters */
  ++p->evaluations;
  return report.loss;
}

static double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

static void add_to(double* a, double factor, const double* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    a[i] += factor * b[i];
  }
}

static double* zeros(int64_t n) {
  double* memory = calloc((size_t)n, sizeof *memory);
  if (memory == NULL) {
    fputs("lbfgs: out of memory\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return memory;
}

/* Minimises the loss. x (n) holds the initial parameters and receives the final ones. Returns the final loss. */
static double minimise(problem* p, double* x) {
  const int64_t n = p->parameters;
  double *g = zeros(n), *direction = zeros(n), *next = zeros(n), *next_g = zeros(n), *s = zeros(PAIRS * n),
         *y = zeros(PAIRS * n), rho[PAIRS], alpha[PAIRS];
  double loss = evaluate(p, x, g);
  int pairs = 0; /* number of pairs made so far; pair k is stored at index k % PAIRS */
  while (p->evaluations < EVALUATIONS) {
    const int oldest = pairs > PAIRS ? pairs - PAIRS : 0;
    memcpy(direction, g, (size_t)n * sizeof *g);
    for (int k = pairs - 1; k >= oldest; --k) {
      alpha[k % PAIRS] = rho[k % PAIRS] * dot(s + k % PAIRS * n, direction, n);
      add_to(direction, -alpha[k % PAIRS], y + k % PAIRS * n, n);
    }
    if (pairs > 0) {
      const double* last = y + (pairs - 1) % PAIRS * n;
      const double scale = 1 / (rho[(pairs - 1) % PAIRS] * dot(last, last, n));
      add_to(direction, scale - 1, direction, n);
    }
    for (int k = oldest; k < pairs; ++k) {
      const double beta = rho[k % PAIRS] * dot(y + k % PAIRS * n, direction, n);
      add_to(direction, alpha[k % PAIRS] - beta, s + k % PAIRS * n, n);
    }
    const double slope = -dot(direction, g, n);
    double step = pairs > 0 ? 1 : 1 / sqrt(dot(g, g, n)), next_loss = loss;
    for (; p->evaluations < EVALUATIONS; step /= 2) { /* halves the step until the loss falls enough (Armijo) */
      memcpy(next, x, (size_t)n * sizeof *x);
      add_to(next, -step, direction, n);
      next_loss = evaluate(p, next, next_g);
      if (next_loss <= loss + 1e-4 * step * slope) {
        break;
      }
    }
    if (!(next_loss < loss)) {
      break;
    }
    double *new_s = s + pairs % PAIRS * n, *new_y = y + pairs % PAIRS * n;
    for (int64_t i = 0; i < n; ++i) {
      new_s[i] = next[i] - x[i];
      new_y[i] = next_g[i] - g[i];
    }
    const double curvature = dot(new_s, new_y, n);
    if (curvature > 1e-12 * dot(new_y, new_y, n)) {
      rho[pairs % PAIRS] = 1 / curvature;
      ++pairs;
    }
    memcpy(x, next, (size_t)n * sizeof *x);
    memcpy(g, next_g, (size_t)n * sizeof *g);
    loss = next_loss;
  }
  double* const memory[] = {g, direction, next, next_g, s, y};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) {
    free(memory[i]);
  }
  return loss;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  lockstep_context context;
  lockstep_comm comm;
  check(lockstep_context_create(NULL, &context));
  check(lockstep_comm_from_mpi(context, MPI_COMM_WORLD, &comm));

  /* The samples are 600 points of a grid. Rank r takes the points r, r + ranks, r + 2 * ranks and so on. */
  double in[600 * FEATURES], target[600];
  int64_t n = 0;
  for (int i = rank; i < 600; i += ranks, ++n) {
    const double a = -1 + 2 * (i % 30) / 29.0, b = -1 + 2 * (i / 30) / 19.0;
    in[FEATURES * n] = a;
    in[FEATURES * n + 1] = b;
    target[n] = sin(3 * a) * exp(-b * b);
  }
  const int64_t widths[] = {FEATURES, 16, 16, 1}, in_shape[] = {n, FEATURES}, target_shape[] = {n};
  problem p = {.in = {in, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, in_shape, NULL, "nc"},
               .target = {target, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, target_shape, NULL, "n"}};
  lockstep_trainer_options options;
  check(lockstep_trainer_options_init(&options, sizeof options));
  options.max_batch = 600;
  check(lockstep_model_mlp(context, LOCKSTEP_F64, widths, 4, LOCKSTEP_ACTIVATION_TANH, &p.model));
  check(lockstep_model_initialise(p.model, 1));
  check(lockstep_trainer_create(p.model, comm, &options, &p.trainer));
  check(lockstep_parameters_size(p.model, LOCKSTEP_WITHOUT_STATISTICS, &p.parameters));

  double* x = zeros(p.parameters);
  const lockstep_view values = vector(x, &p.parameters);
  check(lockstep_parameters_read(p.model, LOCKSTEP_WITHOUT_STATISTICS, &values));
  double* begin = zeros(p.parameters);
  memcpy(begin, x, (size_t)p.parameters * sizeof *x);
  const double loss = minimise(&p, x);

  const lockstep_view first = vector(begin, &p.parameters);
  check(lockstep_parameters_write(p.model, LOCKSTEP_WITHOUT_STATISTICS, &first));
  for (int i = 0; i < EVALUATIONS; ++i) {
    check(lockstep_trainer_add(p.trainer, &p.in, &p.target, NULL, NULL));
    check(lockstep_trainer_update(p.trainer, 1e-2));
  }
  lockstep_report report = {.struct_size = sizeof report};
  check(lockstep_trainer_report(p.trainer, &report));
  if (rank == 0) {
    printf("%d ranks, %lld parameters, %d evaluations\nL-BFGS: loss %.3e\nAdam:   loss %.3e\n", ranks,
           (long long)p.parameters, EVALUATIONS, loss, report.loss);
  }
  free(x);
  free(begin);
  check(lockstep_trainer_destroy(p.trainer));
  check(lockstep_model_destroy(p.model));
  check(lockstep_comm_destroy(comm));
  check(lockstep_context_destroy(context));
  MPI_Finalize();
  return 0;
}
