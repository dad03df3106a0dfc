#include <lockstep/comm/gradients/sums/power_sgd.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <lockstep/comm/gradients/sums/detail/kinds.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/low_rank.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::comm {
namespace {

// For alignment, each matrix in the input of an all-reduce or in the state tensor `factors` begins at a multiple of
// this number of elements.
constexpr std::int64_t kStep = 16;

std::int64_t padded(std::int64_t elements) {
  return align_up(elements, kStep);
}

/// Returns the square root of the type's machine epsilon. orthonormalise() drops a column of which at most this
/// fraction of the norm remains, because such a remainder is only rounding error.
double column_epsilon(DType dtype) {
  return std::sqrt(dtype == DType::f64 ? std::numeric_limits<double>::epsilon()
                                       : static_cast<double>(std::numeric_limits<float>::epsilon()));
}

/// A matrix of a bucket that is compressed to P Q^T. The offsets count elements.
struct Compressed {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t gradient = 0;  ///< offset of the matrix in the bucket
  std::int64_t p = 0;         ///< offset of P in the input of the first all-reduce
  std::int64_t q = 0;         ///< offset of Q in the input of the second all-reduce
  std::int64_t factor = 0;    ///< offset of Q in the state tensor `factors`
  std::unique_ptr<ops::MatmulPlan> to_p;
  std::unique_ptr<ops::MatmulPlan> to_q;
  std::unique_ptr<ops::MatmulPlan> to_gradient;
};

/// Consecutive elements [begin, end) of a bucket that are sent without compression.
struct Plain {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t sent = 0;  ///< offset of these elements in the input of the first all-reduce
};

struct Parts {
  std::vector<Compressed> matrices;  ///< compressed matrices; if empty, the whole bucket is sent uncompressed
  std::vector<Plain> plain;
  std::int64_t begin = 0;     ///< offset of the bucket in the arena
  std::int64_t elements = 0;  ///< number of elements of the bucket
  std::int64_t first = 0;     ///< number of elements of the first all-reduce
  std::int64_t second = 0;    ///< number of elements of the second all-reduce
};

TensorView matrix_of(const TensorView& elements, std::int64_t begin, std::int64_t rows, std::int64_t columns) {
  return elements.slice(0, begin, begin + rows * columns).reshape({rows, columns});
}

}  // namespace

struct PowerSgd::Impl {
  Options options;
  TensorView errors;
  TensorView factors;
  std::vector<Parts> parts;  ///< division of each bucket into matrices and plain elements
  // Memory for the largest bucket. All buckets use the same memory, one after the other in the stream's order.
  Tensor first;
  Tensor second;
  Tensor columns;
  Tensor workspace;
  DType dtype = DType::f32;

  [[nodiscard]] std::int64_t rank() const { return options.rank; }

  void require_state(const TensorView& gradients, std::int64_t factor_elements) const {
    const auto fits = [&](const TensorView& view, const char* what, std::int64_t least) {
      require<ShapeError>(view.shape.rank() == 1 && view.is_contiguous() && view.numel() >= least, "powersgd: ", what,
                          " are ", view, ", expected at least ", least, " elements in one contiguous dimension");
      require<DTypeError>(view.dtype == gradients.dtype, "powersgd: ", what, " are ", view.dtype, ", expected ",
                          gradients.dtype, " as the gradients");
      require<DeviceError>(view.device == gradients.device, "powersgd: ", what, " are on ", view.device, ", expected ",
                           gradients.device, " as the gradients");
    };
    require<DTypeError>(gradients.dtype == DType::f32 || gradients.dtype == DType::f64, "powersgd: the gradients are ",
                        gradients.dtype, ", expected f32 or f64");
    std::int64_t end = 0;
    for (const Parts& each : parts) {
      for (const Compressed& m : each.matrices) {
        end = std::max(end, each.begin + m.gradient + m.rows * m.columns);
      }
    }
    fits(errors, "errors", end);
    fits(factors, "factors", factor_elements);
  }

  /// Divides a bucket into matrices and plain elements. Advances `factor`, the next free offset in the tensor
  /// `factors`.
  Parts cut(std::span<const GradientRange> ranges, const Bucket& bucket, std::int64_t& factor) const {
    Parts made;
    made.begin = bucket.begin;
    made.elements = bucket.end - bucket.begin;
    for (int i = bucket.first; i < bucket.last; ++i) {
      const GradientRange& range = ranges[static_cast<std::size_t>(i)];
      const std::int64_t begin = range.begin - bucket.begin;
      if (compresses(range.rows, range.columns, options.rank)) {
        require<ShapeError>(range.rows * range.columns <= range.end - range.begin, "powersgd: gradient ", range.name,
                            " has ", range.end - range.begin, " elements, expected those of ", range.rows, " x ",
                            range.columns);
        Compressed next;
        next.rows = range.rows;
        next.columns = range.columns;
        next.gradient = begin;
        next.factor = factor;
        next.q = made.second;
        made.second += padded(range.columns * rank());
        factor += padded(range.columns * rank());
        made.matrices.push_back(std::move(next));
      } else if (!made.plain.empty() && made.plain.back().end == begin) {
        made.plain.back().end = range.end - bucket.begin;
      } else {
        made.plain.push_back({.begin = begin, .end = range.end - bucket.begin, .sent = 0});
      }
    }
    if (made.matrices.empty()) {
      return made;
    }
    for (Plain& plain : made.plain) {
      plain.sent = made.first;
      made.first += padded(plain.end - plain.begin);
    }
    for (Compressed& m : made.matrices) {
      m.p = made.first;
      made.first += padded(m.rows * rank());
    }
    return made;
  }

  /// Plans a product with lockstep's own loops or kernels, not with a library. The results of these loops and kernels
  /// have the same bits for any number of threads. A library's results may also depend on its choice of an algorithm,
  /// which a checkpoint does not record.
  std::unique_ptr<ops::MatmulPlan> planned(Context& context, ops::MatmulDesc desc, std::size_t& most) const {
    desc.dtype = dtype;
    auto plan = ops::plan_matmul(context, desc, context.device() == Device::cpu() ? "reference" : "cuda");
    most = std::max(most, plan->workspace_bytes());
    return plan;
  }
};

bool PowerSgd::compresses(std::int64_t rows, std::int64_t columns, int rank) {
  return rows > 0 && 2 * rank * (rows + columns) <= rows * columns;
}

PowerSgd::PowerSgd(const Options& options) : impl_(std::make_unique<Impl>()) {
  require<UsageError>(options.rank >= 1 && options.rank <= kMaxRank, "powersgd: the rank is ", options.rank,
                      ", expected 1 to ", kMaxRank);
  impl_->options = options;
}

PowerSgd::~PowerSgd() = default;

std::string PowerSgd::name() const {
  return concat("powersgd rank ", impl_->rank());
}

std::optional<Misfit> PowerSgd::misfit(const SumOptions& options, const SumUse& use) const {
  const std::optional<Misfit> found = BucketSum::misfit(options, use);
  return found || !use.loss_scale ? found : Misfit{SumField::loss_scale, "what is not sent would keep an old scale"};
}

std::vector<SumState> PowerSgd::state(std::span<const GradientRange> ranges) const {
  std::int64_t elements = 0;
  for (const GradientRange& range : ranges) {
    elements += compresses(range.rows, range.columns, impl_->options.rank) ? padded(range.columns * impl_->rank()) : 0;
  }
  return {{.name = "error", .of_gradients = true}, {.name = "factors", .elements = elements}};
}

void PowerSgd::keep_in(std::span<const TensorView> state) {
  impl_->errors = state[0];
  impl_->factors = state[1];
}

void PowerSgd::prepare(SumPlace& place) {
  Impl& s = *impl_;
  Context& context = place.context();
  s.dtype = place.gradients.dtype;
  s.parts.clear();
  std::int64_t factor = 0;
  for (const Bucket& bucket : place.buckets) {
    s.parts.push_back(s.cut(place.ranges, bucket, factor));
  }
  s.require_state(place.gradients, factor);
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::size_t matrices = 0;
  std::size_t workspace = 0;
  for (Parts& parts : s.parts) {
    first = std::max(first, parts.first);
    second = std::max(second, parts.second);
    matrices = std::max(matrices, parts.matrices.size());
    for (Compressed& m : parts.matrices) {
      m.to_p = s.planned(context, {.m = m.rows, .n = s.rank(), .k = m.columns}, workspace);
      m.to_q = s.planned(context, {.m = m.columns, .n = s.rank(), .k = m.rows, .transpose_a = true}, workspace);
      m.to_gradient = s.planned(context, {.m = m.rows, .n = m.columns, .k = s.rank(), .transpose_b = true}, workspace);
    }
  }
  s.first = Tensor::zeros(context, Shape{first}, s.dtype);
  s.second = Tensor::zeros(context, Shape{second}, s.dtype);
  s.columns = Tensor::zeros(context, Shape{static_cast<std::int64_t>(matrices) * s.rank()}, DType::i32);
  s.workspace = Tensor::empty(context, Shape{static_cast<std::int64_t>(workspace)}, DType::u8);
}

void PowerSgd::release() noexcept {
  impl_->parts.clear();
  impl_->first = impl_->second = impl_->columns = impl_->workspace = Tensor();
}

void PowerSgd::initialise(Context& context) {
  const Impl& s = *impl_;
  ops::fill(context, 0, s.errors);
  ops::fill(context, 0, s.factors);
  for (const Parts& parts : s.parts) {
    for (const Compressed& m : parts.matrices) {
      const Tensor random = Tensor::randn(context, Shape{m.columns, s.rank()}, s.dtype, s.options.seed,
                                          static_cast<std::uint64_t>(parts.begin + m.gradient));
      ops::strided_copy(context, random, matrix_of(s.factors, m.factor, m.columns, s.rank()));
      context.synchronize();  // waits for the copy, because the tensor `random` is about to be destroyed
    }
  }
  context.synchronize();
}

void PowerSgd::reduce(SumPlace& place, int bucket, const TensorView& gradients) {
  Impl& s = *impl_;
  Context& context = place.context();
  Communicator& communicator = place.communicator;
  const Parts& parts = s.parts[static_cast<std::size_t>(bucket)];
  if (parts.matrices.empty()) {
    communicator.all_reduce(context.stream(), gradients);
    return;
  }
  const std::int64_t r = s.rank();
  const TensorView first = s.first.view().slice(0, 0, parts.first);
  const TensorView second = s.second.view().slice(0, 0, parts.second);
  const TensorView none;
  const TensorView& workspace = s.workspace;
  const auto gradient_of = [&](const Compressed& m) { return matrix_of(gradients, m.gradient, m.rows, m.columns); };
  const auto error_of = [&](const Compressed& m) {
    return matrix_of(s.errors, parts.begin + m.gradient, m.rows, m.columns);
  };
  const auto columns_of = [&](const Compressed& m) {
    const auto i = static_cast<std::int64_t>(&m - parts.matrices.data());
    return s.columns.view().slice(0, i * r, (i + 1) * r);
  };
  const auto p_of = [&](const Compressed& m) { return matrix_of(first, m.p, m.rows, r); };
  const auto q_of = [&](const Compressed& m) { return matrix_of(second, m.q, m.columns, r); };
  const auto factor_of = [&](const Compressed& m) { return matrix_of(s.factors, m.factor, m.columns, r); };

  for (const Compressed& m : parts.matrices) {
    ops::add(context, gradient_of(m), error_of(m), gradient_of(m));
    ops::matmul(context, *m.to_p, gradient_of(m), factor_of(m), none, p_of(m), workspace);
  }
  for (const Plain& plain : parts.plain) {
    ops::strided_copy(context, gradients.slice(0, plain.begin, plain.end),
                      first.slice(0, plain.sent, plain.sent + plain.end - plain.begin));
  }
  communicator.all_reduce(context.stream(), first);
  for (const Plain& plain : parts.plain) {
    ops::strided_copy(context, first.slice(0, plain.sent, plain.sent + plain.end - plain.begin),
                      gradients.slice(0, plain.begin, plain.end));
  }
  for (const Compressed& m : parts.matrices) {
    ops::orthonormalise(context, column_epsilon(s.dtype), p_of(m), columns_of(m));
    ops::matmul(context, *m.to_q, gradient_of(m), p_of(m), none, q_of(m), workspace);
    ops::low_rank_residual(context, gradient_of(m), p_of(m), q_of(m), columns_of(m), error_of(m));
  }
  communicator.all_reduce(context.stream(), second);
  for (const Compressed& m : parts.matrices) {
    ops::keep_columns(context, q_of(m), columns_of(m), factor_of(m));
    ops::matmul(context, *m.to_gradient, p_of(m), q_of(m), none, gradient_of(m), workspace);
  }
}

std::int64_t PowerSgd::sent_bytes(int bucket) const {
  const Parts& parts = impl_->parts[static_cast<std::size_t>(bucket)];
  const std::int64_t elements = parts.matrices.empty() ? parts.elements : parts.first + parts.second;
  return elements * static_cast<std::int64_t>(size_of(impl_->dtype));
}

std::size_t PowerSgd::bytes() const {
  std::size_t bytes = 0;
  for (const Tensor* each : {&impl_->first, &impl_->second, &impl_->columns, &impl_->workspace}) {
    bytes += each->view().given() ? each->view().bytes() : 0;
  }
  return bytes;
}

namespace {

/// Parses the argument of "powersgd:RANK". Returns 0 if the text is not a valid rank.
int rank_of(std::string_view argument) {
  int rank = 0;
  const char* const end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data(), end, rank);
  return error == std::errc() && stop == end && rank >= 1 && rank <= PowerSgd::kMaxRank ? rank : 0;
}

}  // namespace

NamedSum low_rank_sum() {
  return {.name = "powersgd",
          .argument = "RANK",
          .expected = concat("powersgd:RANK with a rank of 1 to ", PowerSgd::kMaxRank),
          .help =
              "powersgd: gradients of matrices are sent as products of RANK columns, and the rest is added to the next "
              "step's gradients",
          .options = [](std::string_view argument) -> std::optional<SumOptions> {
            return rank_of(argument) > 0 ? std::optional(SumOptions{.compress = concat("powersgd:", argument)})
                                         : std::nullopt;
          },
          .make = [](std::string_view argument, std::uint64_t seed) -> std::shared_ptr<BucketSum> {
            return std::make_shared<PowerSgd>(PowerSgd::Options{.rank = rank_of(argument), .seed = seed});
          }};
}

}  // namespace lockstep::comm
