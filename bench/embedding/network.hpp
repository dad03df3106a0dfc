#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

// The network that bench_embedding times: an MLP 4-32-32-1 with tanh, as in the column physics of a climate code.

namespace lockstep::bench {

inline constexpr std::int64_t kInputs = 4;
inline constexpr std::int64_t kHidden = 32;
inline constexpr std::int64_t kMaxBatch = 1024;

inline nn::Model mlp() {
  nn::ModelBuilder b("mlp", {kInputs});
  nn::NodeId x = b.linear("1", b.input(), kHidden, {.activation = ops::Activation::tanh});
  x = b.linear("2", x, kHidden, {.activation = ops::Activation::tanh});
  b.linear("3", x, 1);
  return b.build();
}

/// Computes y = w x + b for each sample, then tanh if `tanh`. Shapes: x (n, in), w (out, in), b (out), y (n, out).
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

/// Returns n different samples, of shape (n, kInputs).
template <class T>
std::vector<T> samples(std::int64_t n) {
  std::vector<T> x(static_cast<std::size_t>(n * kInputs));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<T>(2 * std::sin(0.7 * static_cast<double>(i)));
  }
  return x;
}

/// The network in type T on one thread, with memory for n samples, and the ways to compute it in C++. Each way returns
/// a function to be timed; the Network must outlive that function.
template <class T>
class Network {
 public:
  explicit Network(std::int64_t n)
      : context_({.threads = 1}),
        n_(n),
        model_(mlp()),
        parameters_(context_, model_, dtype_of<T>),
        in_(samples<T>(n)),
        out_(values(n)),
        hidden1_(values(n * kHidden)),
        hidden2_(values(n * kHidden)) {
    parameters_.initialise(context_, 1);
    for (const char* name : {"1", "2", "3"}) {
      for (const char* part : {".weight", ".bias"}) {
        const nn::ParameterInfo& info =
            parameters_.parameters()[static_cast<std::size_t>(parameters_.find(name + std::string(part)))];
        weights_.push_back(values(info.numel));
        parameters_.read(context_, info.spec.name, TensorView(std::span(weights_.back()), info.spec.dims));
      }
    }
  }

  /// Returns a function that calls Inference::run, which splits any number of samples into plans of a few sizes.
  [[nodiscard]] std::function<void()> run() {
    inference_ = std::make_unique<nn::Inference>(
        context_, model_, parameters_, nn::InferenceOptions{.max_batch = kMaxBatch, .plan = {.dtype = dtype_of<T>}});
    return [this] { inference_->run(in(), out()); };
  }

  /// Returns a function that calls Plan::run with a plan of n samples, with the same copies in and out.
  [[nodiscard]] std::function<void()> exact() {
    const nn::PlanOptions options{.dtype = dtype_of<T>};
    state_ = std::make_unique<nn::StepState>(context_, n_, nn::step_layout(model_, options));
    plan_ = std::make_unique<nn::Plan>(context_, model_, nn::Mode::infer, n_, options);
    workspace_ = Buffer(plan_->workspace_bytes(), context_);
    plan_->bind(parameters_, *state_, workspace_);
    state_->set(context_, {.learning_rate = 0, .sample_weight = 1, .valid = n_});
    return [this] {
      nn::ingest(context_, *state_, {nn::StateField::values, in()});
      plan_->run(context_);
      nn::emit(context_, plan_->layout(), plan_->output(), {nn::StateField::targets, out()});
    };
  }

  /// Returns a function of plain loops over samples, outputs and inputs, with std::tanh.
  [[nodiscard]] std::function<void()> plain() {
    return [this] {
      layer(in_, weights_[0], weights_[1], hidden1_, n_, kInputs, kHidden, true);
      layer(hidden1_, weights_[2], weights_[3], hidden2_, n_, kHidden, kHidden, true);
      layer(hidden2_, weights_[4], weights_[5], out_, n_, kHidden, 1, false);
    };
  }

  /// Returns the weight (out, in) and the bias (out) of each layer in turn.
  [[nodiscard]] const std::vector<std::vector<T>>& weights() const { return weights_; }
  [[nodiscard]] const std::vector<T>& result() const { return out_; }  ///< outputs of the last run, shape (n, 1)

 private:
  static std::vector<T> values(std::int64_t count) { return std::vector<T>(static_cast<std::size_t>(count)); }
  TensorView in() { return TensorView(std::span(in_), {n_, kInputs}); }
  TensorView out() { return TensorView(std::span(out_), {n_, 1}); }

  CpuContext context_;
  std::int64_t n_;
  nn::Model model_;
  nn::ParameterSet parameters_;
  std::vector<T> in_;       // inputs, shape (n, kInputs)
  std::vector<T> out_;      // outputs, shape (n, 1)
  std::vector<T> hidden1_;  // first hidden layer, shape (n, kHidden)
  std::vector<T> hidden2_;
  std::vector<std::vector<T>> weights_;
  std::unique_ptr<nn::Inference> inference_;
  std::unique_ptr<nn::StepState> state_;
  std::unique_ptr<nn::Plan> plan_;
  Buffer workspace_;
};

}  // namespace lockstep::bench
