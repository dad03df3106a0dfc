// bench_inference: latency of Inference on the host, one thread, beside a plan of exactly that size and plain loops.
//
//   inference/f32/n:32/run      Inference::run, which splits any number of samples into plans of a few sizes
//   inference/f32/n:32/exact    Plan::run of a plan of 32 samples, with the same copies in and out
//   inference/f32/n:32/plain    loops over samples, outputs and inputs, with std::tanh
//
// The network is an MLP 4-32-32-1 with tanh, as column physics in a climate code has them. After the rows: ratios of
// medians. For figures: --benchmark_repetitions=9
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "bench/support/runner.hpp"

namespace {

using namespace lockstep;
using bench::Case;
using bench::Timed;

constexpr std::int64_t kInputs = 4;
constexpr std::int64_t kHidden = 32;
constexpr std::int64_t kMaxBatch = 1024;

nn::Model mlp() {
  nn::ModelBuilder b("mlp", {kInputs});
  nn::NodeId x = b.linear("1", b.input(), kHidden, {.activation = ops::Activation::tanh});
  x = b.linear("2", x, kHidden, {.activation = ops::Activation::tanh});
  b.linear("3", x, 1);
  return b.build();
}

/// y = w x + b by sample: x (n, in), w (out, in), b (out), y (n, out).
template <class T>
[[gnu::noinline]] void layer(const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& b,
                             std::vector<T>& y, std::int64_t n, std::int64_t in, std::int64_t out, bool tanh) {
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t o = 0; o < out; ++o) {
      T sum = b[static_cast<std::size_t>(o)];
      for (std::int64_t i = 0; i < in; ++i) {
        sum += w[static_cast<std::size_t>(o * in + i)] * x[static_cast<std::size_t>(s * in + i)];
      }
      y[static_cast<std::size_t>(s * out + o)] = tanh ? std::tanh(sum) : sum;
    }
  }
}

/// A network of one type on one thread, with memory for n samples.
template <class T>
class Network {
 public:
  explicit Network(std::int64_t n)
      : context_({.threads = 1}),
        n_(n),
        model_(mlp()),
        parameters_(context_, model_, dtype_of<T>),
        in_(values(n * kInputs)),
        out_(values(n)),
        hidden1_(values(n * kHidden)),
        hidden2_(values(n * kHidden)) {
    parameters_.initialise(context_, 1);
    for (std::size_t i = 0; i < in_.size(); ++i) {
      in_[i] = static_cast<T>(2 * std::sin(0.7 * static_cast<double>(i)));
    }
  }

  Timed run() {
    inference_ = std::make_unique<nn::Inference>(
        context_, model_, parameters_, nn::InferenceOptions{.max_batch = kMaxBatch, .plan = {.dtype = dtype_of<T>}});
    return timed([this] { inference_->run(in(), out()); });
  }

  Timed exact() {
    const nn::PlanOptions options{.dtype = dtype_of<T>};
    state_ = std::make_unique<nn::StepState>(context_, n_, nn::step_layout(model_, options));
    plan_ = std::make_unique<nn::Plan>(context_, model_, nn::Mode::infer, n_, options);
    workspace_ = Buffer(plan_->workspace_bytes(), context_);
    plan_->bind(parameters_, *state_, workspace_);
    state_->set(context_, {.learning_rate = 0, .sample_weight = 1, .valid = n_});
    return timed([this] {
      nn::ingest(context_, *state_, {nn::StateField::values, in()});
      plan_->run(context_);
      nn::emit(context_, plan_->layout(), plan_->output(), {nn::StateField::targets, out()});
    });
  }

  Timed plain() {
    for (const char* name : {"1", "2", "3"}) {
      for (const char* part : {".weight", ".bias"}) {
        const nn::ParameterInfo& info =
            parameters_.parameters()[static_cast<std::size_t>(parameters_.find(name + std::string(part)))];
        weights_.push_back(values(info.numel));
        parameters_.read(context_, info.spec.name, TensorView(std::span(weights_.back()), info.spec.dims));
      }
    }
    return timed([this] {
      layer(in_, weights_[0], weights_[1], hidden1_, n_, kInputs, kHidden, true);
      layer(hidden1_, weights_[2], weights_[3], hidden2_, n_, kHidden, kHidden, true);
      layer(hidden2_, weights_[4], weights_[5], out_, n_, kHidden, 1, false);
    });
  }

 private:
  static std::vector<T> values(std::int64_t count) { return std::vector<T>(static_cast<std::size_t>(count)); }
  TensorView in() { return TensorView(std::span(in_), {n_, kInputs}); }
  TensorView out() { return TensorView(std::span(out_), {n_, 1}); }
  template <class F>
  Timed timed(F&& f) {
    f();
    Timed made;
    made.work.start = std::forward<F>(f);
    made.sample_seconds = 1e-4;
    made.per_call = {{"samples_per_second", static_cast<double>(n_)}};
    return made;
  }

  CpuContext context_;
  std::int64_t n_;
  nn::Model model_;
  nn::ParameterSet parameters_;
  std::vector<T> in_;       // (n, kInputs)
  std::vector<T> out_;      // (n, 1)
  std::vector<T> hidden1_;  // (n, kHidden)
  std::vector<T> hidden2_;
  std::vector<std::vector<T>> weights_;  ///< weight, bias of each layer
  std::unique_ptr<nn::Inference> inference_;
  std::unique_ptr<nn::StepState> state_;
  std::unique_ptr<nn::Plan> plan_;
  Buffer workspace_;
};

/// Medians of each case's repetitions, by type and size, then by what was run.
using Medians = std::map<std::string, std::map<std::string, std::vector<double>>>;

template <class T>
void add_cases(std::vector<Case>& all, Medians& medians, const char* type, const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t n : sizes) {
    const std::string group = concat(type, "/n:", n);
    for (const std::string what : {"run", "exact", "plain"}) {
      all.push_back(
          {concat("inference/", group, "/", what), [&medians, group, what, n] {
             const auto network = std::make_shared<Network<T>>(n);
             Timed timed = what == "run" ? network->run() : what == "exact" ? network->exact() : network->plain();
             timed.after = [network, &medians, group, what](const measure::Samples& samples, benchmark::UserCounters&) {
               medians[group][what].push_back(samples.median());
             };
             return timed;
           }});
    }
  }
}

std::string ratios(const Medians& medians) {
  std::string text;
  for (const auto& [group, by_what] : medians) {
    const auto median = [&, &rows = by_what](const char* what) {
      const auto found = rows.find(what);
      return found == rows.end() ? std::nan("") : measure::median_of(found->second);
    };
    const double run = median("run");
    text += concat("inference/", group, ": ", run * 1e6, " us; ", run / median("plain"), " of plain loops, ",
                   run / median("exact"), " of a plan of that size\n");
  }
  return text;
}

int run(comm::Session& session, const DeviceRequest&, const bench::RunOptions& options) {
  require<UsageError>(session.size() == 1, "bench_inference runs on ", session.size(), " ranks, expected 1");
  const std::vector<std::int64_t> sizes{1, 2, 5, 9, 17, 32, 33, 65, 100, 200, 257, 700, 1024};
  Medians medians;
  std::vector<Case> all;
  add_cases<float>(all, medians, "f32", sizes);
  add_cases<double>(all, medians, "f64", sizes);
  return bench::run_cases(session, options, {{"threads", "1"}}, all, [&] { return ratios(medians); });
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {.name = "bench_inference",
                             .description = "Latency of Inference on the host, one thread, an MLP 4-32-32-1.",
                             .add_options = [](CLI::App&) {},
                             .ranks = [](const DeviceRequest&) { return std::nullopt; },
                             .run = run});
}
