#include <lockstep/nn/optim/orthogonalizer.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <lockstep/kernels/muon.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {
namespace {

constexpr int kIterations = 5;
constexpr double kEpsilon = 1e-37;  // smallest norm that is scaled to 1; 1 / kEpsilon is finite in f32
// Largest number of elements of the matrices that are computed as one batch.
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;

/// Plans a product that gives the same bits in every run, because each rank computes the same update alone. On the host
/// the choice is "reference", whose bits do not depend on threads or processors. On a GPU it is the first choice that
/// is deterministic.
std::unique_ptr<ops::MatmulPlan> planned(Context& context, const ops::MatmulDesc& desc) {
  if (context.device().kind == DeviceKind::cpu) {
    return ops::plan_matmul(context, desc, "reference");
  }
  for (const std::string& choice : ops::matmul_choices(context, desc)) {
    std::unique_ptr<ops::MatmulPlan> plan = ops::plan_matmul(context, desc, choice);
    if (plan->deterministic()) {
      return plan;
    }
  }
  throw UnsupportedError(concat("orthogonalizer: no product ", desc.a_shape(), " x ", desc.b_shape(), " of ",
                                desc.dtype, " on ", context.device(),
                                " gives the same bits in every run, expected a matrix that a library multiplies so: "
                                "use another optimizer than muon"));
}

}  // namespace

/// Matrices of one shape, computed together as tensors (batch, rows, columns). Below, k is min(rows, columns).
struct Orthogonalizer::Group {
  std::vector<Matrix> matrices;
  TensorView squares;  ///< squared norms of the matrices, f64 (batch)
  TensorView factors;  ///< inverse norms of the matrices (batch)
  TensorView norm_workspace;
  TensorView x, next;     ///< (batch, rows, columns): X of this iteration and of the next, in the products' type
  TensorView gram, poly;  ///< (batch, k, k): A and a I + b A + c A A of run()'s iterations, in the products' type
  TensorView workspace;
  std::unique_ptr<ops::MatmulPlan> gram_of_x;  ///< gram = X X^T if wide(), otherwise X^T X
  std::unique_ptr<ops::MatmulPlan> square;     ///< poly = gram * gram
  std::unique_ptr<ops::MatmulPlan> product;    ///< next X = poly * X if wide(), otherwise X * poly

  [[nodiscard]] bool wide() const { return matrices.front().rows <= matrices.front().columns; }
};

Orthogonalizer::Orthogonalizer(Orthogonalizer&&) noexcept = default;
Orthogonalizer& Orthogonalizer::operator=(Orthogonalizer&&) noexcept = default;
Orthogonalizer::~Orthogonalizer() = default;

Orthogonalizer::Orthogonalizer(Context& context, const std::vector<Matrix>& matrices, DType arena, DType compute)
    : compute_(compute) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Matrix>> by_shape;
  for (const Matrix& matrix : matrices) {
    require<ShapeError>(matrix.rows >= 1 && matrix.columns >= 1 && matrix.offset >= 0, "orthogonalizer: a matrix (",
                        matrix.rows, ", ", matrix.columns, ") at ", matrix.offset,
                        ", expected at least one row and column and an offset of at least 0");
    by_shape[{matrix.rows, matrix.columns}].push_back(matrix);
  }
  for (auto& [shape, all] : by_shape) {
    const std::int64_t most = std::max<std::int64_t>(1, kMostElements / (shape.first * shape.second));
    for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(most)) {
      const std::size_t last = std::min(all.size(), first + static_cast<std::size_t>(most));
      Group& group = groups_.emplace_back();
      group.matrices.assign(all.begin() + static_cast<std::ptrdiff_t>(first),
                            all.begin() + static_cast<std::ptrdiff_t>(last));
    }
  }

  // All groups share one block of memory, which each group divides in its own way.
  std::size_t bytes = 0;
  const auto divide = [&](Group& group, std::byte* memory) {
    std::size_t at = 0;
    const auto take = [&](DType dtype, const Shape& shape) {
      const TensorView view(memory != nullptr ? memory + at : nullptr, dtype, context.device(), shape);
      at = align_up(at + view.bytes(), kAlignment);
      return view;
    };
    const auto batch = static_cast<std::int64_t>(group.matrices.size());
    const auto& [offset, rows, columns] = group.matrices.front();
    const std::int64_t k = std::min(rows, columns);
    group.squares = take(DType::f64, {batch});
    group.factors = take(arena, {batch});
    const TensorView one(nullptr, arena, context.device(), {rows * columns});
    group.norm_workspace =
        take(DType::u8, {static_cast<std::int64_t>(ops::squared_norm_workspace_bytes(context, one))});
    group.x = take(compute, {batch, rows, columns});
    group.next = take(compute, {batch, rows, columns});
    group.gram = take(compute, {batch, k, k});
    group.poly = take(compute, {batch, k, k});
    if (!group.square) {
      const bool wide = group.wide();
      ops::MatmulDesc desc{.dtype = compute, .batch = batch};
      desc.m = desc.n = k;
      desc.k = wide ? columns : rows;
      desc.transpose_a = !wide;
      desc.transpose_b = wide;
      group.gram_of_x = planned(context, desc);
      desc.k = k;
      desc.transpose_a = desc.transpose_b = false;
      group.square = planned(context, desc);
      desc.m = rows;
      desc.n = columns;
      group.product = planned(context, desc);
    }
    const std::size_t most = std::max(
        {group.gram_of_x->workspace_bytes(), group.square->workspace_bytes(), group.product->workspace_bytes()});
    group.workspace = take(DType::u8, {static_cast<std::int64_t>(most)});
    bytes = std::max(bytes, at);
  };
  for (Group& group : groups_) {
    divide(group, nullptr);
  }
  memory_ = Buffer(bytes, context);
  for (Group& group : groups_) {
    divide(group, memory_.data());
  }
}

void Orthogonalizer::run(Context& context, const TensorView& arena) {
  for (Group& group : groups_) {
    const auto& [offset, rows, columns] = group.matrices.front();
    const auto batch = static_cast<std::int64_t>(group.matrices.size());
    const auto matrix_of = [&, rows = rows, columns = columns](std::int64_t i) {
      const std::int64_t begin = group.matrices[static_cast<std::size_t>(i)].offset;
      return arena.slice(0, begin, begin + rows * columns);
    };
    const auto copy_of = [&, rows = rows, columns = columns](const TensorView& all, std::int64_t i) {
      return all.slice(0, i, i + 1).reshape({rows * columns});
    };
    for (std::int64_t i = 0; i < batch; ++i) {
      ops::squared_norm(context, matrix_of(i), group.squares.slice(0, i, i + 1).reshape({}), group.norm_workspace);
    }
    ops::muon_factor(context, kEpsilon, group.squares, group.factors);
    for (std::int64_t i = 0; i < batch; ++i) {
      const TensorView factor = group.factors.slice(0, i, i + 1).reshape({});
      if (arena.dtype == compute_) {
        ops::scale(context, factor, matrix_of(i), copy_of(group.x, i));
      } else {
        ops::scale(context, factor, matrix_of(i), matrix_of(i));
        ops::strided_copy(context, matrix_of(i), copy_of(group.x, i));
      }
    }
    TensorView x = group.x;
    TensorView next = group.next;
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      ops::matmul(context, *group.gram_of_x, x, x, {}, group.gram, group.workspace);
      ops::matmul(context, *group.square, group.gram, group.gram, {}, group.poly, group.workspace);
      ops::muon_polynomial(context, {}, group.gram, group.poly, group.poly);
      const TensorView& left = group.wide() ? group.poly : x;
      const TensorView& right = group.wide() ? x : group.poly;
      ops::matmul(context, *group.product, left, right, {}, next, group.workspace);
      std::swap(x, next);
    }
    for (std::int64_t i = 0; i < batch; ++i) {
      ops::strided_copy(context, copy_of(x, i), matrix_of(i));
    }
  }
}

std::size_t Orthogonalizer::bytes() const {
  return memory_.bytes();
}

}  // namespace lockstep::nn
