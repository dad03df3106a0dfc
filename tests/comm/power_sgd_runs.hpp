#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/gradients/sums/power_sgd.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

/// PowerSGD for tests: steps of a reducer on one rank, and a reference in plain loops that computes all ranks.
namespace lockstep::comm {

/// The shape of a gradient. rows = 0: a vector of `columns` elements.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
using Matrices = std::vector<Matrix>;

/// Returns the ranges of gradients with these shapes. Each range ends with 3 elements of padding.
inline std::vector<GradientRange> ranges_of(const Matrices& shapes) {
  std::vector<GradientRange> all;
  std::int64_t begin = 0;
  for (const Matrix& shape : shapes) {
    const std::int64_t elements = shape.rows == 0 ? shape.columns : shape.rows * shape.columns;
    all.push_back({.name = "g" + std::to_string(all.size()),
                   .begin = begin,
                   .end = begin + elements + 3,
                   .rows = shape.rows,
                   .columns = shape.rows == 0 ? 0 : shape.columns});
    begin = all.back().end;
  }
  return all;
}

/// Returns a gradient of normal random numbers. Each rank and step has its own numbers.
inline std::vector<double> random_gradient(std::int64_t elements, int rank, int step) {
  Random random(17, RandomUse::test, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
  std::vector<double> values(static_cast<std::size_t>(elements));
  for (double& value : values) {
    value = random.normal();
  }
  return values;
}

/// One rank: its arena, the state of PowerSGD, and the reducer that uses PowerSGD as hook.
template <class T>
struct PowerSgdRank {
  PowerSgdRank(Communicator& communicator, const Matrices& shapes, int rank, Stream& comm,
               std::int64_t bucket_bytes = std::int64_t{1} << 20)
      : compute(Stream::host_inline()),
        gradients(ranges_of(shapes)),
        arena(static_cast<std::size_t>(gradients.back().end)),
        errors(arena.size(), 99),
        made(std::make_shared<PowerSgd>(PowerSgd::Options{.rank = rank, .seed = 5})),
        hook(*made),
        factors(static_cast<std::size_t>(hook.state(gradients)[1].elements), 99),
        reducer(communicator, compute, comm, gradients, plan(bucket_bytes), view(arena), {.sum = kept()}) {
    hook.initialise(context);
  }
  static TensorView view(std::vector<T>& values) {
    return {std::span(values), Shape{static_cast<std::int64_t>(values.size())}};
  }
  [[nodiscard]] std::vector<Bucket> plan(std::int64_t bytes) const {
    BucketOptions options;
    options.element_bytes = sizeof(T);
    options.bucket_bytes = bytes;
    return plan_buckets(gradients, options);
  }
  [[nodiscard]] std::shared_ptr<BucketSum> kept() {
    hook.keep_in(std::vector<TensorView>{view(errors), view(factors)});
    return made;
  }
  void step(const std::vector<double>& gradient) {
    reducer.begin_step();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      for (std::int64_t i = gradients[g].begin; i < gradients[g].end; ++i) {
        arena[static_cast<std::size_t>(i)] = static_cast<T>(gradient[static_cast<std::size_t>(i)]);
      }
      reducer.gradient_written(static_cast<int>(g));
    }
    reducer.finish();
  }
  CpuContext context{{.threads = 1}};
  Stream compute;
  std::vector<GradientRange> gradients;
  std::vector<T> arena;
  std::vector<T> errors;
  std::shared_ptr<PowerSgd> made;
  PowerSgd& hook;
  std::vector<T> factors;
  GradientReducer reducer;
};

/// Reference for PowerSGD of one matrix: computes all ranks with plain loops in f64, as in the paper. q: initial value
/// of the paper's matrix Q.
class PowerSgdOracle {
 public:
  PowerSgdOracle(int ranks, std::size_t rows, std::size_t columns, std::size_t rank, std::vector<double> q)
      : n_(rows), k_(columns), r_(rank), q_(std::move(q)), errors_(static_cast<std::size_t>(ranks)) {
    for (std::vector<double>& error : errors_) {
      error.assign(n_ * k_, 0);
    }
  }
  /// Returns the decompressed gradient, which all ranks get. m: each rank's gradient, of shape (rows, columns).
  std::vector<double> step(std::vector<std::vector<double>> m) {
    std::vector<double> p(n_ * r_);
    for (std::size_t w = 0; w < m.size(); ++w) {
      for (std::size_t i = 0; i < n_; ++i) {
        for (std::size_t j = 0; j < k_; ++j) {
          m[w][i * k_ + j] += errors_[w][i * k_ + j];
          for (std::size_t c = 0; c < r_; ++c) {
            p[i * r_ + c] += m[w][i * k_ + j] * q_[j * r_ + c];
          }
        }
      }
    }
    orthonormalise(p);
    std::vector<double> sum(k_ * r_);
    for (std::size_t w = 0; w < m.size(); ++w) {
      std::vector<double> own(k_ * r_);
      for (std::size_t i = 0; i < n_; ++i) {
        for (std::size_t j = 0; j < k_; ++j) {
          for (std::size_t c = 0; c < r_; ++c) {
            own[j * r_ + c] += m[w][i * k_ + j] * p[i * r_ + c];
          }
        }
      }
      const std::vector<double> sent = product(p, own);
      for (std::size_t i = 0; i < sent.size(); ++i) {
        errors_[w][i] = m[w][i] - sent[i];
      }
      for (std::size_t i = 0; i < own.size(); ++i) {
        sum[i] += own[i];
      }
    }
    q_ = sum;
    return product(p, q_);
  }
  [[nodiscard]] const std::vector<double>& error(int rank) const { return errors_[static_cast<std::size_t>(rank)]; }

 private:
  [[nodiscard]] std::vector<double> product(const std::vector<double>& p, const std::vector<double>& q) const {
    std::vector<double> result(n_ * k_);
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t j = 0; j < k_; ++j) {
        for (std::size_t c = 0; c < r_; ++c) {
          result[i * k_ + j] += p[i * r_ + c] * q[j * r_ + c];
        }
      }
    }
    return result;
  }
  /// Orthonormalises the columns by Gram-Schmidt, in their order.
  void orthonormalise(std::vector<double>& p) const {
    for (std::size_t c = 0; c < r_; ++c) {
      for (std::size_t before = 0; before < c; ++before) {
        double along = 0;
        for (std::size_t i = 0; i < n_; ++i) {
          along += p[i * r_ + c] * p[i * r_ + before];
        }
        for (std::size_t i = 0; i < n_; ++i) {
          p[i * r_ + c] -= along * p[i * r_ + before];
        }
      }
      double squares = 0;
      for (std::size_t i = 0; i < n_; ++i) {
        squares += p[i * r_ + c] * p[i * r_ + c];
      }
      for (std::size_t i = 0; i < n_; ++i) {
        p[i * r_ + c] /= std::sqrt(squares);
      }
    }
  }
  std::size_t n_;
  std::size_t k_;
  std::size_t r_;
  std::vector<double> q_;
  std::vector<std::vector<double>> errors_;
};

/// Returns the larger number, or NaN if one of the numbers is NaN. A test with `<=` then fails.
inline double worse(double most, double next) {
  return std::isnan(most) || next <= most ? most : next;
}

/// Returns the largest absolute difference between `values` and `expected`, divided by the largest absolute value of
/// `expected`.
template <class T>
double difference(std::span<const T> values, const std::vector<double>& expected) {
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    most = worse(most, std::abs(static_cast<double>(values[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return most / largest;
}

/// Compares steps on this rank with PowerSgdOracle. The gradients are vectors, a matrix too small to be compressed, and
/// two larger matrices. Returns the largest difference between the reducer and the oracle, over gradients and kept
/// errors. Vectors and the small matrix are compared with plain sums.
template <class T>
double power_sgd_against_oracle(Communicator& communicator, Stream& comm, int rank, std::int64_t bucket_bytes,
                                int steps = 4) {
  const Matrices shapes{{24, 30}, {0, 7}, {3, 4}, {0, 5}, {40, 26}};
  PowerSgdRank<T> own(communicator, shapes, rank, comm, bucket_bytes);
  const int ranks = communicator.size();
  std::vector<PowerSgdOracle> oracles;
  std::int64_t factor = 0;
  for (const std::size_t g : {0U, 4U}) {
    const auto k = shapes[g].columns;
    std::vector<double> q;
    for (std::int64_t i = 0; i < k * rank; ++i) {
      q.push_back(static_cast<double>(own.factors[static_cast<std::size_t>(factor + i)]));
    }
    factor += (k * rank + 15) / 16 * 16;
    oracles.emplace_back(ranks, static_cast<std::size_t>(shapes[g].rows), static_cast<std::size_t>(k),
                         static_cast<std::size_t>(rank), q);
  }
  double most = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<double>> all;
    for (int w = 0; w < ranks; ++w) {
      all.push_back(random_gradient(own.gradients.back().end, w, step));
      for (double& value : all.back()) {
        value = static_cast<double>(static_cast<T>(value));
      }
    }
    own.step(all[static_cast<std::size_t>(communicator.rank())]);
    for (std::size_t g = 0; g < shapes.size(); ++g) {
      const auto begin = static_cast<std::size_t>(own.gradients[g].begin);
      const bool compressed = g == 0 || g == 4;
      const auto elements = static_cast<std::size_t>(compressed ? shapes[g].rows * shapes[g].columns
                                                                : own.gradients[g].end - own.gradients[g].begin);
      std::vector<std::vector<double>> parts;
      for (const std::vector<double>& each : all) {
        parts.emplace_back(each.begin() + static_cast<std::ptrdiff_t>(begin),
                           each.begin() + static_cast<std::ptrdiff_t>(begin + elements));
      }
      const std::span<const T> got = std::span<const T>(own.arena).subspan(begin, elements);
      if (compressed) {
        PowerSgdOracle& oracle = oracles[g == 0 ? 0 : 1];
        most = worse(most, difference(got, oracle.step(parts)));
        most = worse(most, difference(std::span<const T>(own.errors).subspan(begin, elements),
                                      oracle.error(communicator.rank())));
      } else {
        std::vector<double> sum(elements);
        for (const std::vector<double>& part : parts) {
          for (std::size_t i = 0; i < elements; ++i) {
            sum[i] += part[i];
          }
        }
        most = worse(most, difference(got, sum));
      }
    }
  }
  return most;
}

}  // namespace lockstep::comm
