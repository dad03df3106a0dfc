// heat2d in C++: the solver of main.c with the options --type, --save and --load. It prints the same numbers as main.c.
// It lacks main.c's checks (of written cells, allocations and the rank of the normal matrix) and its ranks that do not
// train. The program calls the C interface, as a solver in C++ would: lockstep.h needs C++11, but the C++ headers need
// C++20, and a newer library replaces an older one without compiling the solver again. The class Handle is part of this
// program; lockstep has no such class. (A program that is built together with lockstep uses nn::TrainStep instead:
// tests/downstream.)
#include <lockstep/lockstep_mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

namespace {

constexpr int nx = 32, ny = 29, pitch = nx + 2, steps = 600, saved = 400, cells = 9;
constexpr double r = 0.2;

/// The options of the program.
struct Options {
  bool f32 = false;
  std::string save_to, load_from;  // folders of --save and --load; empty: option not given
};

/// A rank's number and its rows of the whole field.
struct Part {
  int rank = 0, ranks = 0, first_row = 0, rows = 0;
};

/// A rank's part of the field, with a halo: rows -1 and part.rows, and columns -1 and nx.
class Field {
 public:
  explicit Field(const Part& part) : rows_(part.rows), cells_(static_cast<std::size_t>(rows_ + 2) * pitch) {}
  double& operator()(int row, int column) { return cells_[at(row, column)]; }
  double operator()(int row, int column) const { return cells_[at(row, column)]; }
  /// Calls f(row, column) for each cell outside the halo.
  template <class F>
  void each(F f) const {
    for (int row = 0; row < rows_; ++row) {
      for (int column = 0; column < nx; ++column) {
        f(row, column);
      }
    }
  }

 private:
  static std::size_t at(int row, int column) { return static_cast<std::size_t>((row + 1) * pitch + column + 1); }
  int rows_;
  std::vector<double> cells_;
};

/// Returns a number in (-1, 1) that depends only on i, so it is equal in every language and for every number of ranks.
double draw(std::int64_t i) {
  std::int64_t x = i + 99991;
  for (int k = 0; k < 4; ++k) {
    x = (x * x + i) % 2147483647;
  }
  return 2.0 * static_cast<double>(x) / 2147483647.0 - 1;
}

void begin(Field& u, const Part& part, int step) {
  u.each([&](int row, int column) { u(row, column) = draw((step * ny + part.first_row + row) * nx + column); });
}

/// Fills the halo of `u`. The field is periodic, and the ranks have consecutive ranges of its rows.
void exchange(Field& u, const Part& part) {
  const int rows = part.rows;
  const int above = (part.rank + part.ranks - 1) % part.ranks, below = (part.rank + 1) % part.ranks;
  MPI_Sendrecv(&u(0, 0), nx, MPI_DOUBLE, above, 0, &u(rows, 0), nx, MPI_DOUBLE, below, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&u(rows - 1, 0), nx, MPI_DOUBLE, below, 1, &u(-1, 0), nx, MPI_DOUBLE, above, 1, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  for (int row = -1; row <= rows; ++row) {
    u(row, -1) = u(row, nx - 1);
    u(row, nx) = u(row, 0);
  }
}

void solve(const Field& u, Field& next) {
  u.each([&](int y, int x) {
    next(y, x) = u(y, x) + r * (u(y - 1, x) + u(y + 1, x) + u(y, x - 1) + u(y, x + 1) - 4 * u(y, x));
  });
}

void must(lockstep_status status) {
  if (status != LOCKSTEP_OK) {
    std::fprintf(stderr, "%s\n", lockstep_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

/// Owns a handle that a create function has made, and destroys it at the end of the scope.
template <class T, lockstep_status (*destroy)(T)>
class Handle {
 public:
  template <class Create, class... Arguments>
  explicit Handle(Create create, const Arguments&... arguments) {
    must(create(arguments..., &handle_));
  }
  ~Handle() { destroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator T() const { return handle_; }

 private:
  T handle_ = nullptr;
};
using Context = Handle<lockstep_context, lockstep_context_destroy>;
using Comm = Handle<lockstep_comm, lockstep_comm_destroy>;
using Model = Handle<lockstep_model, lockstep_model_destroy>;
using Trainer = Handle<lockstep_trainer, lockstep_trainer_destroy>;

double error_of(double have, double exact) {
  const double error = std::abs(have - exact);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

/// Trains a convolution while the solver runs. Returns true if the convolution has learned the solver's stencil.
bool train(const Part& part, const Options& asked) {
  const int rows = part.rows;
  Field u(part), next(part), learned(part);
  lockstep_context_options place;
  must(lockstep_context_options_init(&place, sizeof place));
  place.threads = 1;
  const Context context(lockstep_context_create, &place);
  const Comm comm(lockstep_comm_from_mpi, context, MPI_COMM_WORLD);

  // A convolution of 3 x 3 without padding and bias maps a field with its halo to the cells outside the halo.
  const std::int64_t sample[] = {rows + 2, nx + 2, 1};
  const std::int32_t input = 0;
  const Model model(lockstep_model_create, context, asked.f32 ? LOCKSTEP_F32 : LOCKSTEP_F64, sample, 3);
  must(lockstep_model_add(model, "conv2d", 0, "stencil", 0, &input, 1, 1, nullptr, nullptr));
  must(lockstep_model_initialise(model, 1));
  must(lockstep_model_prepare(model, 1));
  lockstep_trainer_options options;
  must(lockstep_trainer_options_init(&options, sizeof options));
  options.optimizer = LOCKSTEP_OPTIMIZER_SGD;  // SGD has momentum, which --save saves, too
  options.weights = LOCKSTEP_WEIGHTS_SAMPLE;
  options.max_batch = 1;
  const Trainer trainer(lockstep_trainer_create, model, comm, &options);
  if (!asked.load_from.empty()) {
    must(lockstep_trainer_load(trainer, asked.load_from.data(), asked.load_from.size()));
  }

  const std::int64_t whole[] = {rows + 2, nx + 2}, inside[] = {rows, nx}, strides[] = {pitch, 1}, one[] = {1};
  const int first = asked.load_from.empty() ? 0 : saved;
  double count = rows * nx;
  const lockstep_view in = {&u(-1, -1), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, whole, strides, "hw"};
  const lockstep_view target = {&next(0, 0), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, inside, strides, "hw"};
  const lockstep_view out = {&learned(0, 0), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, inside, strides, "hw"};
  const lockstep_view weight = {&count, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 1, one, nullptr, "n"};
  for (int step = first; step < steps; ++step) {
    begin(u, part, step);
    exchange(u, part);
    solve(u, next);
    must(lockstep_trainer_add(trainer, &in, &target, &weight, nullptr));
    must(lockstep_trainer_update(trainer, 0.1));
    if ((step + 1) % 100 == 0) {
      double loss = 0;
      must(lockstep_trainer_loss(trainer, 1, &loss, nullptr));
      loss *= count / (nx * ny);  // this rank's part of the mean over all cells
      MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      if (part.rank == 0) {
        std::printf("step %d: loss %.10e\n", step + 1, loss);
      }
    }
    if (!asked.save_to.empty() && step + 1 == saved) {
      must(lockstep_trainer_save(trainer, asked.save_to.data(), asked.save_to.size()));
    }
  }
  must(lockstep_infer(model, &in, &out, nullptr));

  const double exact[cells] = {0, r, 0, r, 1 - 4 * r, r, 0, r, 0};
  const std::int64_t shape[] = {1, 1, 3, 3};
  double w[cells], error[] = {0, 0};  // largest error of a weight, and of a cell of the field
  const lockstep_view weights = {w, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 4, shape, nullptr, nullptr};
  must(lockstep_parameter_read(model, "stencil.weight", 0, &weights));
  for (int i = 0; i < cells; ++i) {
    error[0] = std::max(error[0], error_of(w[i], exact[i]));
  }
  u.each(
      [&](int row, int column) { error[1] = std::max(error[1], error_of(learned(row, column), next(row, column))); });
  MPI_Allreduce(MPI_IN_PLACE, error, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  const double gate = asked.f32 ? 1e-5 : 1e-10;
  const bool good = error[0] < gate && error[1] < gate;
  if (part.rank == 0) {
    for (int i = 0; i < cells; i += 3) {
      std::printf("%20.16f%20.16f%20.16f\n", w[i], w[i + 1], w[i + 2]);
    }
    std::printf("%d ranks, %s: largest error of a weight %.1e, of the field %.1e\n", part.ranks,
                asked.f32 ? "f32" : "f64", error[0], error[1]);
    std::puts(good ? "the stencil is learned" : "NOT learned");
  }
  return good;
}

/// Reads the options into `asked`. Returns false if an argument is unknown.
bool read(const std::vector<std::string>& arguments, Options& asked) {
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string& name = arguments[i];
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    if (name == "--type" && value == "f32") {
      asked.f32 = true;
    } else if (name == "--save" && !value.empty()) {
      asked.save_to = value;
    } else if (name == "--load" && !value.empty()) {
      asked.load_from = value;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  Options asked;
  Part part;
  MPI_Comm_rank(MPI_COMM_WORLD, &part.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &part.ranks);
  if (!read({argv + 1, argv + argc}, asked) || part.ranks > ny) {
    std::fprintf(stderr, "heat2d [--type f32] [--save FOLDER] [--load FOLDER], with at most %d ranks\n", ny);
    MPI_Finalize();
    return 2;
  }
  part.first_row = ny * part.rank / part.ranks;
  part.rows = ny * (part.rank + 1) / part.ranks - part.first_row;
  const bool good = train(part, asked);
  MPI_Finalize();
  return good ? 0 : 1;
}
