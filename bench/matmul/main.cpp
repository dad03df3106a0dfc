// bench_matmul: measures matrix products on the CPU and on a GPU, and the cost of waiting for small results.
//
//   bench_matmul --benchmark_filter=/f32/
//
//   matmul/cpu/f32/onednn/n:1024            one product of two n x n matrices, by size, provider and device
//
//   matmul/cuda:0/f32/cublaslt/n:1024/with_copies   both operands are copied from the host, the product to the host
//
//   matmul/cpu/norms/logged_each            1000 products of 100 x 100 matrices, the norm of each copied to the host
//
//   matmul/cpu/norms/kept                   the same products; all norms are copied to the host once, at the end
//
//   matmul/cpu_and_cpu/two_halves/n:1024/at_once   two products at once, each by half of the threads
//
//   matmul/cuda:0_and_cuda:0/two_streams/n:1024/at_once   two products at once, each on its own stream of one GPU
//
//   matmul/cuda:0_and_cuda:1/two_devices/n:1024/at_once   two products at once, each on its own GPU
//
// times_as_fast_as_cpu, in rows of GPUs, is the speed relative to the fastest product of the same size on the CPU.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "bench/support/gpus.hpp"
#include "bench/support/runner.hpp"

namespace {

using namespace lockstep;
using bench::Case;
using bench::Timed;

struct Options {
  int threads = 0;
  std::int64_t min_size = 16;
  std::int64_t max_size = 2048;
  std::int64_t pair_size = 1024;
  std::int64_t products = 1000;
};

ops::MatmulDesc square(std::int64_t n) {
  ops::MatmulDesc desc;
  desc.m = desc.n = desc.k = n;
  return desc;
}

/// One product with its memory. The context must outlive the Product.
class Product {
 public:
  Product(Context& context, std::int64_t n, const std::string& choice)
      : context_(context),
        plan_(ops::plan_matmul(context, square(n), choice)),
        a_(Tensor::ones(context, Shape{n, n}, DType::f32)),
        b_(Tensor::ones(context, Shape{n, n}, DType::f32)),
        c_(Tensor::zeros(context, Shape{n, n}, DType::f32)),
        workspace_(Tensor::empty(context, Shape{static_cast<std::int64_t>(plan_->workspace_bytes())}, DType::u8)) {
    context.synchronize();
  }
  void enqueue() { ops::matmul(context_, *plan_, a_, b_, {}, c_, workspace_); }
  [[nodiscard]] const TensorView& a() const { return a_; }
  [[nodiscard]] const TensorView& b() const { return b_; }
  [[nodiscard]] const TensorView& result() const { return c_; }
  [[nodiscard]] Context& context() const { return context_; }

  /// Computes the product once. Throws StateError unless every element is n.
  void check() {
    enqueue();
    std::vector<float> values(static_cast<std::size_t>(c_.shape().numel()));
    copy(context_, c_, {std::span(values), c_.shape()});
    context_.synchronize();
    check(values);
  }
  void check(std::span<const float> values) const {
    const auto n = static_cast<float>(c_.shape()[0]);
    for (const float value : values) {
      require<StateError>(value == n, "matmul ", plan_->choice(), ": an element is ", value, ", expected ", n);
    }
  }

 private:
  Context& context_;
  std::unique_ptr<ops::MatmulPlan> plan_;
  Tensor a_, b_, c_, workspace_;
};

/// A product on a GPU with operands and result in page-locked host memory.
class StagedProduct {
 public:
  explicit StagedProduct(Product& product)
      : product_(product),
        memory_(product.context().device()),
        a_(product.a().bytes(), memory_, product.context().stream()),
        b_(product.b().bytes(), memory_, product.context().stream()),
        c_(product.result().bytes(), memory_, product.context().stream()) {
    copy(product.context(), product.a(), host(a_));
    copy(product.context(), product.b(), host(b_));
    product.context().synchronize();
  }
  void enqueue() {
    copy(product_.context(), host(a_), product_.a());
    copy(product_.context(), host(b_), product_.b());
    product_.enqueue();
    copy(product_.context(), product_.result(), host(c_));
  }
  /// Copies the operands, computes the product and copies the result, once. Throws StateError unless every element is
  /// n.
  void check() {
    enqueue();
    product_.context().synchronize();
    product_.check({static_cast<const float*>(host(c_).data), product_.result().bytes() / sizeof(float)});
  }

 private:
  [[nodiscard]] TensorView host(Buffer& buffer) const {
    return {buffer.data(), DType::f32, Device::cpu(), product_.result().shape};
  }

  Product& product_;
  PinnedMemoryResource memory_;
  Buffer a_, b_, c_;
};

/// A device with a context. Its work does not run in the calling thread: the CPU has a worker thread.
struct Place {
  std::string name;
  Device device;
  int threads = 1;
  std::unique_ptr<Stream> worker{};
  std::unique_ptr<Context> context{};

  void open() {
    if (context) {
      return;
    }
    if (device.kind == DeviceKind::cuda) {
      context = make_context(device);
      return;
    }
    worker = std::make_unique<Stream>(Stream::host_worker("matmul"));
    context = std::make_unique<CpuContext>(CpuContext::Options{.threads = threads, .stream = worker.get()});
  }
};

class MatmulBenchmarks {
 public:
  MatmulBenchmarks(comm::Session& session, const Options& options, int threads, const std::vector<Device>& gpus)
      : session_(session), options_(options), threads_(threads) {
    places_.push_back({"cpu", Device::cpu(), threads_});
    for (const Device gpu : gpus) {
      const std::unique_ptr<Context> context = make_context(gpu);
      if (ops::matmul_choices(*context, square(1)).empty()) {
        left_out_ = concat("matmul on ", gpu, ": this build has no provider for it");
      } else {
        places_.push_back({to_string(gpu), gpu});
      }
    }
    if (gpus.empty()) {
      left_out_ = "there is no GPU to compare the CPU with";
    }
    if (places_.size() > 1) {
      second_stream_ = {places_[1].name, places_[1].device};
    }
    half_[0] = {"cpu", Device::cpu(), std::max(threads_ / 2, 1)};
    half_[1] = {"cpu", Device::cpu(), std::max(threads_ / 2, 1)};
  }

  [[nodiscard]] const std::string& left_out() const { return left_out_; }

  std::vector<Case> list() {
    std::vector<Case> all;
    for (Place& place : places_) {
      place.open();
      // The loop collects the names of providers (libraries and own kernels). If a plan gets only the name of a
      // provider as its choice, the provider takes the choice that it guesses to be best.
      std::vector<std::string> providers;
      for (const std::string& choice : ops::matmul_choices(*place.context, square(options_.min_size))) {
        const std::string provider = choice.substr(0, choice.find(':'));
        if (providers.empty() || providers.back() != provider) {
          providers.push_back(provider);
        }
      }
      for (const std::string& choice : providers) {
        const bool slow = choice.starts_with("reference");  // large products of "reference" would take too long
        for (const std::int64_t n : bench::size_sweep(options_.min_size, options_.max_size, 2)) {
          if (!slow || n <= 512) {
            add_size(all, place, choice, n, /*staged=*/false);
            if (place.device.kind == DeviceKind::cuda) {
              add_size(all, place, choice, n, /*staged=*/true);
            }
          }
        }
      }
    }
    for (Place& place : places_) {
      for (const bool each : {true, false}) {
        all.push_back({concat("matmul/", place.name, "/norms/", each ? "logged_each" : "kept"),
                       [this, &place, each] { return norms(place, each); }});
      }
    }
    add_two(all, "two_halves", half_[0], half_[1]);
    if (places_.size() > 1) {
      add_two(all, "two_streams", places_[1], second_stream_);
    }
    if (places_.size() > 2) {
      add_two(all, "two_devices", places_[1], places_[2]);
    }
    return all;
  }

 private:
  static constexpr const char* kStaged = "/with_copies";

  /// A product with its memory. If `staged` is true, operands and result are in host memory, and are copied to and from
  /// the GPU.
  struct Sized {
    Sized(Context& context, std::int64_t n, const std::string& choice, bool staged) : product(context, n, choice) {
      product.check();
      if (staged) {
        from_host.emplace(product).check();
      }
    }
    void enqueue() { from_host ? from_host->enqueue() : product.enqueue(); }

    Product product;
    std::optional<StagedProduct> from_host;
  };

  void add_size(std::vector<Case>& all, Place& place, const std::string& choice, std::int64_t n, bool staged) {
    const auto open = [this, &place, choice, n, staged] {
      std::shared_ptr<Sized> sized;
      session_.agree([&] { sized = std::make_shared<Sized>(*place.context, n, choice, staged); });
      Timed timed;
      timed.work = {[sized] { sized->enqueue(); }, [&place] { place.context->synchronize(); }, {}};
      timed.sample_seconds = 1e-4;  // several products are enqueued before a wait, as in a program
      timed.per_call = {{"flop_per_second", square(n).flops()}};
      timed.after = [this, &place, choice, n](const measure::Samples& samples, benchmark::UserCounters& counters) {
        std::map<std::string, double>& on_cpu = cpu_seconds_[n];
        if (place.device.kind == DeviceKind::cpu) {
          on_cpu[choice] = samples.mean();
        } else if (!on_cpu.empty()) {
          counters["times_as_fast_as_cpu"] = std::ranges::min(on_cpu | std::views::values) / samples.mean();
        }
      };
      return timed;
    };
    all.push_back({concat("matmul/", place.name, "/f32/", choice, "/n:", n, staged ? kStaged : ""), open});
  }

  /// Matrix products on a device, and host memory for the norms of the products, as in a program that logs norms.
  struct Norms {
    static constexpr std::int64_t kSize = 100;
    Norms(Context& on, std::int64_t products)
        : context(on),
          product(on, kSize, {}),
          squares(Tensor::zeros(on, Shape{products}, DType::f64)),
          scratch(Tensor::empty(
              on, Shape{static_cast<std::int64_t>(ops::squared_norm_workspace_bytes(on, product.result()))},
              DType::u8)),
          logged(static_cast<std::size_t>(products)) {}

    /// Enqueues all products. If `each` is true, copies the norm of each product to the host and waits for the copy.
    /// Otherwise copies all norms once, after the last product.
    void enqueue(bool each) {
      for (std::size_t i = 0; i < logged.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const TensorView norm = squares.view().slice(0, at, at + 1).reshape(Shape{});
        product.enqueue();
        ops::squared_norm(context, product.result(), norm, scratch);
        if (each) {
          copy(context, norm, {std::span(logged).subspan(i, 1), Shape{}});
          context.synchronize();
        }
      }
      if (!each) {
        copy(context, squares, {std::span(logged), squares.shape()});
      }
    }
    void check() {
      context.synchronize();
      for (const double value : logged) {  // the product has 100 x 100 elements of value 100
        require<StateError>(value == 1e8, "a squared norm is ", value, ", expected 1e8");
      }
    }

    Context& context;
    Product product;
    Tensor squares, scratch;
    std::vector<double> logged;
  };

  Timed norms(Place& place, bool each) {
    std::shared_ptr<Norms> norms;
    session_.agree([&] {
      norms = std::make_shared<Norms>(*place.context, options_.products);
      norms->enqueue(each);
      norms->check();
    });
    return {.work = {[norms, each] { norms->enqueue(each); }, [&place] { place.context->synchronize(); }, {}},
            .counters = {{"products", static_cast<double>(options_.products)}}};
  }

  void add_two(std::vector<Case>& all, const char* what, Place& first, Place& second) {
    for (const bool at_once : {false, true}) {
      all.push_back({concat("matmul/", first.name, "_and_", second.name, "/", what, "/n:", options_.pair_size,
                            at_once ? "/at_once" : "/one_after_the_other"),
                     [this, &first, &second, at_once] { return two(first, second, at_once); }});
    }
  }

  /// Makes a case in which one call computes two products. With at_once the products run at the same time. Otherwise
  /// they run one after the other, with all threads of the CPU or on the first device.
  Timed two(Place& first, Place& second, bool at_once) {
    first.open();
    second.open();
    Place& whole = first.device == Device::cpu() ? places_[0] : first;
    Context& one_on = at_once ? *first.context : *whole.context;
    Context& other_on = at_once ? *second.context : *whole.context;
    const auto one = std::make_shared<Product>(one_on, options_.pair_size, "");
    const auto other = std::make_shared<Product>(other_on, options_.pair_size, "");
    const auto start = [one, other] {
      one->enqueue();
      other->enqueue();
    };
    const auto wait = [&one_on, &other_on] {
      one_on.synchronize();
      other_on.synchronize();
    };
    return {.work = {start, wait, {}}, .per_call = {{"flop_per_second", 2 * square(options_.pair_size).flops()}}};
  }

  comm::Session& session_;
  const Options& options_;
  int threads_;
  std::vector<Place> places_;
  Place half_[2];
  Place second_stream_;  ///< the first GPU again, with a second stream
  std::string left_out_;
  std::map<std::int64_t, std::map<std::string, double>> cpu_seconds_;  ///< seconds, by size and provider
};

int run(const Options& options, comm::Session& session, const DeviceRequest& devices,
        const bench::RunOptions& run_options) {
  const bench::ProcessGpus mine = bench::gpus_of_process(session, devices);
  const std::vector<Device>& gpus = mine.devices;
  const int threads = options.threads > 0 ? options.threads : comm::cpu_share(session).threads();
  std::optional<MatmulBenchmarks> benchmarks;
  std::vector<Case> all;
  session.agree([&] {
    benchmarks.emplace(session, options, threads, gpus);
    all = benchmarks->list();
  });
  bench::RunContext context{{"threads", concat(threads)}};
  if (!benchmarks->left_out().empty()) {
    context.emplace_back("left_out", benchmarks->left_out());
  }
  return bench::run_cases(session, run_options, context, all);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto add_options = [&](CLI::App& app) {
    const CLI::Range sizes(1, 1 << 17);
    bench::add_threads_option(app, options.threads);
    app.add_option("--min-size", options.min_size, "rows and columns of the smallest matrices")->check(sizes);
    app.add_option("--max-size", options.max_size, "rows and columns of the largest matrices")->check(sizes);
    app.add_option("--pair-size", options.pair_size, "rows and columns of two products at once")->check(sizes);
    app.add_option("--products", options.products, "number of products of 100 x 100 matrices, whose norms are logged")
        ->check(CLI::Range(1, 1000000));
  };
  return bench::run_program(
      argc, argv,
      {.name = "bench_matmul",
       .description = "Times matrix products: sizes, devices, waiting for small results, two products at once.",
       .add_options = add_options,
       .ranks = bench::host_ranks,
       .run = std::bind_front(run, std::cref(options))});
}
