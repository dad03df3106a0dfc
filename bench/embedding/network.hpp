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

#include "bench/embedding/loops.hpp"

// The networks that bench_embedding times: an MLP 4-32-32-1 with tanh, as in the column physics of a climate code, and
// a wide one.

namespace lockstep::bench {

inline constexpr std::int64_t kInputs = 4;
inline constexpr std::int64_t kMaxBatch = 1024;
using Widths = std::vector<std::int64_t>;  ///< number of inputs, then the number of outputs of each layer
inline const Widths kSmall{kInputs, 32, 32, 1};
inline const Widths kWide{500, 500, 500, 500, 500, 200};

inline nn::Model mlp(const Widths& widths) {
  nn::ModelBuilder b("mlp", {widths.front()});
  nn::NodeId x = b.input();
  for (std::size_t i = 1; i < widths.size(); ++i) {
    const bool last = i + 1 == widths.size();
    x = b.linear(std::to_string(i), x, widths[i],
                 {.activation = last ? ops::Activation::identity : ops::Activation::tanh});
  }
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

/// Returns n different samples, of shape (n, features).
template <class T>
std::vector<T> samples(std::int64_t n, std::int64_t features = kInputs) {
  std::vector<T> x(static_cast<std::size_t>(n * features));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<T>(2 * std::sin(0.7 * static_cast<double>(i)));
  }
  return x;
}

/// The network in type T on one thread, with memory for n samples. run(), exact(), outputs_innermost() and
/// samples_innermost() each return a function that computes all samples, to be timed. The Network must outlive that
/// function.
template <class T>
class Network {
 public:
  explicit Network(std::int64_t n, const Widths& widths = kSmall)
      : context_({.threads = 1}),
        n_(n),
        widths_(widths),
        model_(mlp(widths)),
        parameters_(context_, model_, dtype_of<T>),
        in_(samples<T>(n, widths.front())),
        out_(values(n * widths.back())) {
    parameters_.initialise(context_, 1);
    for (std::size_t i = 1; i < widths.size(); ++i) {
      for (const char* part : {".weight", ".bias"}) {
        const nn::ParameterInfo& info =
            parameters_.parameters()[static_cast<std::size_t>(parameters_.find(std::to_string(i) + part))];
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

  /// Returns a function that calls Plan::run with a plan of n samples. The function copies the samples to the plan and
  /// the outputs from the plan, as Inference::run does.
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

  /// Each returns a function that runs the loop of the same name in class Loops (loops.hpp).
  [[nodiscard]] std::function<void()> outputs_innermost() {
    loops_ = std::make_unique<Loops<T>>(widths_, weights_);
    return [this] { loops_->outputs_innermost(in_.data(), out_.data(), n_); };
  }
  [[nodiscard]] std::function<void()> samples_innermost() {
    loops_ = std::make_unique<Loops<T>>(widths_, weights_);
    turned_ = turned(in_, n_);
    return [this] {
      loops_->samples_innermost(turned_.data(), out_.data(), n_);
      turned_outputs_ = true;
    };
  }

  /// Computes the outputs by plain loops over samples, outputs and inputs, with std::tanh: the oracle of the
  /// contenders.
  void plain() {
    std::vector<T> x = in_;
    for (std::size_t i = 1; i < widths_.size(); ++i) {
      std::vector<T> y = values(n_ * widths_[i]);
      layer(x, weights_[2 * i - 2], weights_[2 * i - 1], y, n_, widths_[i - 1], widths_[i], i + 1 < widths_.size());
      x = std::move(y);
    }
    out_ = std::move(x);
  }

  /// Returns the weight (out, in) and the bias (out) of each layer in turn.
  [[nodiscard]] const std::vector<std::vector<T>>& weights() const { return weights_; }
  /// Returns the outputs of the last run, shape (n, outputs).
  [[nodiscard]] std::vector<T> result() const { return turned_outputs_ ? turned(out_, widths_.back()) : out_; }

 private:
  static std::vector<T> values(std::int64_t count) { return std::vector<T>(static_cast<std::size_t>(count)); }
  /// Returns the transpose of a matrix with `rows` rows.
  static std::vector<T> turned(const std::vector<T>& matrix, std::int64_t rows) {
    std::vector<T> to = matrix;
    const auto columns = static_cast<std::int64_t>(matrix.size()) / rows;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      to[static_cast<std::size_t>(i % columns * rows + i / columns)] = matrix[static_cast<std::size_t>(i)];
    }
    return to;
  }
  TensorView in() { return TensorView(std::span(in_), {n_, widths_.front()}); }
  TensorView out() { return TensorView(std::span(out_), {n_, widths_.back()}); }

  CpuContext context_;
  std::int64_t n_;
  Widths widths_;
  nn::Model model_;
  nn::ParameterSet parameters_;
  std::vector<T> in_;            // inputs, shape (n, inputs)
  std::vector<T> out_;           // outputs, shape (n, outputs)
  std::vector<T> turned_;        // inputs, shape (inputs, n)
  bool turned_outputs_ = false;  // out_ has shape (outputs, n)
  std::vector<std::vector<T>> weights_;
  std::unique_ptr<Loops<T>> loops_;
  std::unique_ptr<nn::Inference> inference_;
  std::unique_ptr<nn::StepState> state_;
  std::unique_ptr<nn::Plan> plan_;
  Buffer workspace_;
};

}  // namespace lockstep::bench
