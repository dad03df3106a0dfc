#include "bench/embedding/contenders.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/base/error.hpp>

#include "bench/embedding/network.hpp"
#include "bench/embedding/torch_mlp.hpp"

#if LOCKSTEP_BENCH_FORTRAN
extern "C" {
void bench_infer_f32(const lockstep_model* model, const float* x, float* y, std::int64_t n);
void bench_infer_f64(const lockstep_model* model, const double* x, double* y, std::int64_t n);
}
#endif

namespace lockstep::bench {
namespace {

constexpr std::int64_t kBoxes = 64;
constexpr std::int64_t kCells = 8 * 8 * 8;  ///< number of cells in a box
constexpr int kCallsOfAThread = 20;

void ok(lockstep_status status) {
  require<Error>(status == LOCKSTEP_OK, lockstep_last_error());
}

template <class T>
constexpr lockstep_dtype kType = std::is_same_v<T, float> ? LOCKSTEP_F32 : LOCKSTEP_F64;

/// A context with one thread and the model in it, made through the C interface only.
template <class T>
class Host {
 public:
  explicit Host(std::int64_t max_batch, const Widths& widths = kSmall) {
    make_context();
    ok(lockstep_model_mlp(context_, kType<T>, widths.data(), static_cast<std::int32_t>(widths.size()),
                          LOCKSTEP_ACTIVATION_TANH, &model_));
    ok(lockstep_model_initialise(model_, 1));
    ok(lockstep_model_prepare(model_, max_batch));
  }
  /// Shares the parameters of another Host.
  Host(const Host& other, std::int64_t max_batch) {
    make_context();
    ok(lockstep_model_share(other.model_, context_, &model_));
    ok(lockstep_model_prepare(model_, max_batch));
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    lockstep_model_destroy(model_);
    lockstep_context_destroy(context_);
  }
  [[nodiscard]] const lockstep_model& model() const { return model_; }
  [[nodiscard]] lockstep_context context() const { return context_; }

 private:
  void make_context() {
    lockstep_context_options options;
    ok(lockstep_context_options_init(&options, sizeof options));
    options.threads = 1;
    ok(lockstep_context_create(&options, &context_));
  }

  lockstep_context context_ = nullptr;
  lockstep_model model_ = nullptr;
};

/// A view of shape (n, features) of the host program's memory.
template <class T>
class Rows {
 public:
  Rows(T* data, std::int64_t n, std::int64_t features)
      : shape_{n, features},
        view_{.data = data,
              .dtype = kType<T>,
              .device_type = LOCKSTEP_CPU,
              .device_id = 0,
              .ndim = 2,
              .shape = shape_,
              .strides = nullptr,
              .axes = nullptr} {}
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  [[nodiscard]] const lockstep_view* view() const { return &view_; }
  void resize(std::int64_t n) { shape_[0] = n; }

 private:
  std::int64_t shape_[2];
  lockstep_view view_;
};

/// A host program with n samples; its model is prepared for max_batch samples.
template <class T>
struct Embedded {
  Embedded(std::int64_t n, std::int64_t max_batch, const Widths& widths = kSmall)
      : host(max_batch, widths),
        x(samples<T>(n, widths.front())),
        y(static_cast<std::size_t>(n * widths.back())),
        in(x.data(), n, widths.front()),
        out(y.data(), n, widths.back()) {}

  Host<T> host;
  std::vector<T> x;
  std::vector<T> y;
  Rows<T> in;
  Rows<T> out;
};

/// The functions of bench_embedding_torch.so, which is in the folder of this program.
class Torch {
 public:
  static const Torch& loaded() {
    static const Torch kTorch;
    return kTorch;
  }
  std::string missing{};
  decltype(&bench_torch_make) make = nullptr;
  decltype(&bench_torch_run) run = nullptr;
  decltype(&bench_torch_end) end = nullptr;
  decltype(&bench_torch_version) version = nullptr;

 private:
  Torch() {
    const auto file = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bench_embedding_torch.so";
    if (!std::filesystem::exists(file)) {
      missing = "libtorch was not found when this was configured (LOCKSTEP_TORCH)";
      return;
    }
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (library == nullptr) {
      missing = concat("libtorch cannot be loaded: ", dlerror());
      return;
    }
    make = reinterpret_cast<decltype(make)>(dlsym(library, "bench_torch_make"));
    run = reinterpret_cast<decltype(run)>(dlsym(library, "bench_torch_run"));
    end = reinterpret_cast<decltype(end)>(dlsym(library, "bench_torch_end"));
    version = reinterpret_cast<decltype(version)>(dlsym(library, "bench_torch_version"));
    if (make == nullptr || run == nullptr || end == nullptr || version == nullptr) {
      missing = "bench_embedding_torch.so is of another build";
    }
  }
};

template <class T>
void require_close(const std::vector<T>& found, const std::vector<T>& expected, const std::string& what) {
  const double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-13;
  require<Error>(found.size() == expected.size(), what, " gives ", found.size(), " numbers, expected ",
                 expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(double{found[i]} - double{expected[i]});
    require<Error>(error <= tolerance, what, ": sample ", i, " is ", found[i], ", plain loops give ", expected[i]);
  }
}

/// Returns the outputs for samples<T>(n), computed by plain loops.
template <class T>
std::vector<T> expected(std::int64_t n, const Widths& widths = kSmall) {
  Network<T> network(n, widths);
  network.plain();
  return network.result();
}

/// Makes a contender of a call that writes `result`, one number per sample. Runs the call once and compares `result`
/// with plain loops.
template <class T>
Contender checked(std::function<void()> call, const std::vector<T>& result, const std::string& what,
                  const Widths& widths = kSmall) {
  call();
  const std::int64_t n = static_cast<std::int64_t>(result.size()) / widths.back();
  require_close(result, expected<T>(n, widths), what);
  return {.call = std::move(call), .missing = {}, .samples = static_cast<double>(n)};
}

template <class T>
Contender in_cpp(const std::string& way, std::int64_t n, const Widths& widths) {
  const auto network = std::make_shared<Network<T>>(n, widths);
  std::function<void()> call = way == "cpp"       ? network->run()
                               : way == "exact"   ? network->exact()
                               : way == "outputs" ? network->outputs_innermost()
                                                  : network->samples_innermost();
  call();
  require_close(network->result(), expected<T>(n, widths), way);
  return {.call = [network, call = std::move(call)] { call(); }, .missing = {}, .samples = static_cast<double>(n)};
}

/// Returns a function that calls lockstep_infer for all samples of the program.
template <class T>
std::function<void()> infer(const std::shared_ptr<Embedded<T>>& program) {
  return [program] { ok(lockstep_infer(program->host.model(), program->in.view(), program->out.view(), nullptr)); };
}

template <class T>
Contender in_c(std::int64_t n, const Widths& widths) {
  const auto program = std::make_shared<Embedded<T>>(n, kMaxBatch, widths);
  return checked<T>(infer(program), program->y, "c", widths);
}

template <class T>
Contender in_fortran(std::int64_t n) {
#if LOCKSTEP_BENCH_FORTRAN
  const auto program = std::make_shared<Embedded<T>>(n, kMaxBatch);
  const auto call = [program, n] {
    if constexpr (std::is_same_v<T, float>) {
      bench_infer_f32(&program->host.model(), program->x.data(), program->y.data(), n);
    } else {
      bench_infer_f64(&program->host.model(), program->x.data(), program->y.data(), n);
    }
  };
  return checked<T>(call, program->y, "fortran");
#else
  static_cast<void>(n);
  return {.call = {}, .missing = "this build has no Fortran compiler", .samples = 0};
#endif
}

template <class T>
Contender in_torch(std::int64_t n) {
  const Torch& torch = Torch::loaded();
  if (!torch.missing.empty()) {
    return {.call = {}, .missing = torch.missing, .samples = 0};
  }
  struct Program {
    std::vector<T> x;
    std::vector<T> y;
    std::shared_ptr<void> mlp;
  };
  const Network<T> network(1);
  std::vector<const void*> weights;
  for (const std::vector<T>& each : network.weights()) {
    weights.push_back(each.data());
  }
  const std::shared_ptr<void> mlp(torch.make(std::is_same_v<T, double> ? 1 : 0, weights.data()), torch.end);
  require<Error>(mlp != nullptr, "libtorch cannot make the network");
  const auto program =
      std::make_shared<Program>(Program{samples<T>(n), std::vector<T>(static_cast<std::size_t>(n)), mlp});
  const auto call = [program, &torch, n] {
    require<Error>(torch.run(program->mlp.get(), program->x.data(), program->y.data(), n) == 0,
                   "libtorch cannot run the network");
  };
  return checked<T>(call, program->y, "torch");
}

/// Threads that compute at the same time, once per call of run(). The threads wait between the calls, so that the start
/// of threads is not timed.
template <class T>
class Team {
 public:
  explicit Team(int threads) {
    for (int i = 0; i < threads; ++i) {
      hosts_.push_back(i == 0 ? std::make_unique<Host<T>>(kMaxBatch)
                              : std::make_unique<Host<T>>(*hosts_[0], kMaxBatch));
      results_.emplace_back(static_cast<std::size_t>(kMaxBatch));
    }
    for (int i = 1; i < threads; ++i) {
      threads_.emplace_back([this, i] {
        for (int turn = 0;; ++turn) {
          turn_.wait(turn);
          if (over_) {
            return;
          }
          work(static_cast<std::size_t>(i));
          working_.fetch_sub(1);
          working_.notify_all();
        }
      });
    }
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    over_ = true;
    turn_.fetch_add(1);
    turn_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void run() {
    working_ = static_cast<int>(threads_.size());
    turn_.fetch_add(1);
    turn_.notify_all();
    work(0);
    for (int working = working_; working != 0; working = working_) {
      working_.wait(working);
    }
  }
  [[nodiscard]] const std::vector<std::vector<T>>& results() const { return results_; }

 private:
  void work(std::size_t i) {
    const Rows<T> in(x_.data(), kMaxBatch, kInputs);
    const Rows<T> out(results_[i].data(), kMaxBatch, 1);
    for (int call = 0; call < kCallsOfAThread; ++call) {
      ok(lockstep_infer(hosts_[i]->model(), in.view(), out.view(), nullptr));
    }
  }

  std::vector<T> x_ = samples<T>(kMaxBatch);
  std::vector<std::unique_ptr<Host<T>>> hosts_;
  std::vector<std::vector<T>> results_;
  std::vector<std::thread> threads_;
  std::atomic<int> turn_{0};
  std::atomic<int> working_{0};
  std::atomic<bool> over_{false};
};

}  // namespace

const std::vector<std::string>& ways() {
  static const std::vector<std::string> kWays{"c", "cpp", "outputs", "samples", "exact", "fortran", "torch"};
  return kWays;
}

template <class T>
Contender make_contender(const std::string& way, std::int64_t n, bool wide) {
  require<UsageError>(std::find(ways().begin(), ways().end(), way) != ways().end(), "'", way,
                      "' is no way to compute the network");
  const Widths& widths = wide ? kWide : kSmall;
  return way == "c"         ? in_c<T>(n, widths)
         : way == "fortran" ? in_fortran<T>(n)
         : way == "torch"   ? in_torch<T>(n)
                            : in_cpp<T>(way, n, widths);
}

Contender make_strided(std::int64_t n) {
  struct Program : Embedded<float> {
    explicit Program(std::int64_t samples) : Embedded(samples, kMaxBatch), fields(x.size()), results(y.size()) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        fields[i % kInputs * y.size() + i / kInputs] = double{x[i]};
      }
      from.shape = in_shape;
      to.shape = out_shape;
    }
    std::vector<double> fields, results;  // shapes (inputs, n) and (1, n)
    std::int64_t in_shape[2] = {kInputs, static_cast<std::int64_t>(y.size())};
    std::int64_t out_shape[2] = {1, static_cast<std::int64_t>(y.size())};
    lockstep_view from{fields.data(), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, nullptr, nullptr, "cn"};
    lockstep_view to{results.data(), LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, nullptr, nullptr, "cn"};
  };
  const auto program = std::make_shared<Program>(n);
  const auto call = [program] { ok(lockstep_infer(program->host.model(), &program->from, &program->to, nullptr)); };
  call();
  require_close({program->results.begin(), program->results.end()}, expected<float>(n), "strided");
  return {.call = call, .missing = {}, .samples = static_cast<double>(n)};
}

Contender make_training(std::int64_t n) {
  struct Program : Embedded<float> {
    explicit Program(std::int64_t samples) : Embedded(samples, samples) {
      lockstep_trainer_options options;
      ok(lockstep_trainer_options_init(&options, sizeof options));
      options.max_batch = samples;
      ok(lockstep_comm_self(host.context(), &comm));
      ok(lockstep_trainer_create(host.model(), comm, &options, &trainer));
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program() {
      lockstep_trainer_destroy(trainer);
      lockstep_comm_destroy(comm);
    }
    lockstep_comm comm = nullptr;
    lockstep_trainer trainer = nullptr;
  };
  const auto program = std::make_shared<Program>(n);
  const auto call = [program] {
    ok(lockstep_trainer_add(program->trainer, program->in.view(), program->out.view(), nullptr, nullptr));
    ok(lockstep_trainer_update(program->trainer, 1e-6));
  };
  return {.call = call, .missing = {}, .samples = static_cast<double>(n)};
}

Contender make_convolution(std::int64_t n) {
  struct Program {
    explicit Program(std::int64_t samples)
        : shape{samples, 16, 16, 2}, x(static_cast<std::size_t>(samples * 512)), y(x) {
      const std::int64_t sample[] = {16, 16, 2};
      lockstep_layer_options layer;
      ok(lockstep_layer_options_init(&layer, sizeof layer));
      layer.pad[0] = layer.pad[1] = 1;
      ok(lockstep_context_create(nullptr, &context));
      ok(lockstep_model_create(context, LOCKSTEP_F32, sample, 3, &model));
      std::int32_t node = 0;
      for (const auto& [name, channels] : {std::pair{"1", 8}, {"2", 8}, {"3", 2}}) {
        const std::int32_t input = node;
        ok(lockstep_model_add(model, "conv2d", 0, name, 0, &input, 1, channels, &layer, &node));
      }
      ok(lockstep_model_initialise(model, 1));
      ok(lockstep_model_prepare(model, samples));
      in.shape = out.shape = shape;
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program() {
      lockstep_model_destroy(model);
      lockstep_context_destroy(context);
    }
    lockstep_context context = nullptr;
    lockstep_model model = nullptr;
    std::int64_t shape[4];
    std::vector<float> x, y;
    lockstep_view in{x.data(), LOCKSTEP_F32, LOCKSTEP_CPU, 0, 4, nullptr, nullptr, "nhwc"};
    lockstep_view out{y.data(), LOCKSTEP_F32, LOCKSTEP_CPU, 0, 4, nullptr, nullptr, "nhwc"};
  };
  const auto program = std::make_shared<Program>(n);
  const auto call = [program] { ok(lockstep_infer(program->model, &program->in, &program->out, nullptr)); };
  return {.call = call, .missing = {}, .samples = static_cast<double>(n)};
}

template <class T>
Contender make_boxes(bool many) {
  struct Program : Embedded<T> {
    Program() : Embedded<T>(kBoxes * kCells, kBoxes * kCells) {
      for (std::int64_t box = 0; box < kBoxes; ++box) {
        for (auto& [views, data, features] : {std::tuple{&in_boxes, this->x.data(), kInputs},
                                              std::tuple{&out_boxes, this->y.data(), std::int64_t{1}}}) {
          views->push_back({.data = data + box * kCells * features,
                            .dtype = kType<T>,
                            .device_type = LOCKSTEP_CPU,
                            .device_id = 0,
                            .ndim = 4,
                            .shape = features == 1 ? out_shape : in_shape,
                            .strides = nullptr,
                            .axes = "nnnc"});
        }
      }
    }
    std::int64_t in_shape[4] = {8, 8, 8, kInputs};
    std::int64_t out_shape[4] = {8, 8, 8, 1};
    std::vector<lockstep_view> in_boxes;
    std::vector<lockstep_view> out_boxes;
  };
  const auto program = std::make_shared<Program>();
  if (!many) {
    return checked<T>(infer<T>(program), program->y, "one view");
  }
  const auto call = [program] {
    ok(lockstep_infer_many(program->host.model(), program->in_boxes.data(), program->out_boxes.data(), kBoxes,
                           nullptr));
  };
  return checked<T>(call, program->y, "boxes");
}

template <class T>
Contender make_threads(int threads) {
  const auto team = std::make_shared<Team<T>>(threads);
  team->run();
  for (const std::vector<T>& result : team->results()) {
    require_close(result, expected<T>(kMaxBatch), "a thread");
  }
  return {.call = [team] { team->run(); },
          .missing = {},
          .samples = static_cast<double>(threads * kCallsOfAThread * kMaxBatch)};
}

template <class T>
std::function<void(std::int64_t n)> make_any() {
  const auto program = std::make_shared<Embedded<T>>(kMaxBatch, kMaxBatch);
  return [program, call = infer(program)](std::int64_t n) {
    program->in.resize(n);
    program->out.resize(n);
    call();
  };
}

std::string torch_version() {
  const Torch& torch = Torch::loaded();
  return torch.missing.empty() ? torch.version() : torch.missing;
}

template Contender make_contender<float>(const std::string&, std::int64_t, bool);
template Contender make_contender<double>(const std::string&, std::int64_t, bool);
template Contender make_boxes<float>(bool);
template Contender make_boxes<double>(bool);
template Contender make_threads<float>(int);
template Contender make_threads<double>(int);
template std::function<void(std::int64_t)> make_any<float>();
template std::function<void(std::int64_t)> make_any<double>();

}  // namespace lockstep::bench
