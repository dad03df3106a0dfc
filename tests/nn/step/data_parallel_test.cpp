// Compares the gradient of P ranks, reduced in buckets, with the gradient of one rank.
#include <algorithm>
#include <cstring>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

using testing::Net;

constexpr std::int64_t kBatch = 13;  // the shares of 2, 3 and 4 ranks are uneven

/// Returns a model of convolutions, ReLU, a strided convolution with bias, and a linear layer. It has no batch norm, so
/// the gradients of the ranks' shares add up to the gradient of the whole batch.
Model plain_net() {
  ModelBuilder b("plain", {9, 9, 3});
  NodeId x = b.relu("r1", b.conv2d("c1", b.input(), 8, {.kernel = 3, .pad = 1, .bias = true}));
  x = b.relu("r2", b.conv2d("c2", x, 12, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  x = b.relu("r3", b.linear("l1", b.max_pool("pool", x, 2, 2, 0), 16, {.he_init = true}));
  b.linear("fc", x, 5);
  return b.build();
}

/// Copies rows [begin, begin + count) of the whole batch's input and labels.
void take_share(Net& net, Net& whole, std::int64_t begin, std::int64_t count) {
  for (const StateField field : {StateField::values, StateField::labels}) {
    const TensorView& from = whole.state().view(field);
    const TensorView& to = net.state().view(field);
    const std::size_t row = from.bytes() / static_cast<std::size_t>(from.shape[0]);
    std::memset(to.data, 0, to.bytes());
    std::memcpy(to.data, static_cast<std::byte*>(from.data) + row * static_cast<std::size_t>(begin),
                row * static_cast<std::size_t>(count));
  }
  net.scalars().valid = count;
  net.scalars().sample_weight = 1.0 / kBatch;
}

/// Returns the reduced gradient arena of every rank. bucket_bytes is as in BucketOptions.
std::vector<std::vector<double>> gradients(int ranks, DType dtype, bool overlap, std::int64_t bucket_bytes = 2000) {
  const Model model = plain_net();
  std::vector<std::vector<double>> result(static_cast<std::size_t>(ranks));
  comm::on_ranks(ranks, [&](comm::Communicator& communicator) {
    Net whole(model, Mode::train, kBatch, dtype);
    const std::int64_t rank = communicator.rank();
    const std::int64_t share = kBatch / ranks + (rank < kBatch % ranks ? 1 : 0);
    const std::int64_t begin = rank * (kBatch / ranks) + std::min(rank, kBatch % ranks);
    Net net(model, Mode::train, (kBatch + ranks - 1) / ranks, dtype);
    take_share(net, whole, begin, share);

    std::vector<comm::GradientRange> ranges;
    const auto infos = net.parameters().parameters();
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const std::int64_t end = i + 1 < infos.size() ? infos[i + 1].offset : net.parameters().numel();
      ranges.push_back({infos[i].spec.name, infos[i].offset, end, infos[i].writes});
    }
    Stream worker = overlap ? Stream::host_worker("comm") : Stream::host_inline();
    const auto buckets = comm::plan_buckets(ranges, {.element_bytes = 4, .bucket_bytes = bucket_bytes});
    comm::GradientReducer reducer(communicator, net.context().stream(), worker, ranges, buckets,
                                  net.parameters().gradients());
    EXPECT_GT(reducer.buckets().size(), 1U);
    net.state().set(net.context(), net.scalars());
    reducer.begin_step();
    net.plan().run(net.context(), [&](int parameter) { reducer.gradient_written(parameter); });
    reducer.finish();
    net.context().synchronize();
    result[static_cast<std::size_t>(rank)] = testing::to_doubles(net.parameters().gradients());
  });
  return result;
}

/// Returns the largest testing::relative_error of a parameter.
double worst_error(std::vector<double> a, std::vector<double> b) {
  CpuContext context;
  const ParameterSet layout(context, plain_net(), DType::f32);
  const ParameterSet layout64(context, plain_net(), DType::f64);
  const ParameterSet& set = static_cast<std::int64_t>(b.size()) == layout.numel() ? layout : layout64;
  double worst = 0;
  for (const ParameterInfo& info : set.parameters()) {
    const auto part = [&](std::vector<double>& arena) {
      return TensorView(arena.data() + info.offset, DType::f64, Device::cpu(), {info.numel});
    };
    worst = std::max(worst, testing::relative_error(part(a), part(b)));
  }
  return worst;
}

TEST(DataParallel, GradientOfManyRanksIsThatOfOneInF64) {
  const std::vector<double> one = gradients(1, DType::f64, false)[0];
  for (const int ranks : {2, 3, 4}) {
    for (const bool overlap : {false, true}) {
      for (const std::vector<double>& gradient : gradients(ranks, DType::f64, overlap)) {
        const double error = worst_error(gradient, one);
        EXPECT_TRUE(error <= 1e-12) << ranks << " ranks, overlap " << overlap << ": " << error;
      }
    }
  }
}

TEST(DataParallel, F32IsAsCloseToF64AsOneRankIs) {
  const std::vector<double> one = gradients(1, DType::f32, false)[0];
  const std::vector<double> exact_arena = gradients(1, DType::f64, false)[0];
  // The padding of the f64 arena differs from that of the f32 arena, so the f64 arena is converted to the f32 layout.
  CpuContext context;
  const ParameterSet f32(context, plain_net(), DType::f32);
  const ParameterSet f64(context, plain_net(), DType::f64);
  std::vector<double> exact(one.size(), 0.0);
  for (std::size_t p = 0; p < f32.parameters().size(); ++p) {
    for (std::int64_t i = 0; i < f32.parameters()[p].numel; ++i) {
      exact[static_cast<std::size_t>(f32.parameters()[p].offset + i)] =
          exact_arena[static_cast<std::size_t>(f64.parameters()[p].offset + i)];
    }
  }
  const double own_error = worst_error(one, exact);
  for (const int ranks : {2, 3, 4}) {
    const std::vector<double> many = gradients(ranks, DType::f32, true)[0];
    EXPECT_TRUE(worst_error(many, one) <= 1e-4) << ranks;
    EXPECT_TRUE(worst_error(many, exact) <= 2 * own_error)
        << ranks << " ranks: " << worst_error(many, exact) << ", one: " << own_error;
  }
}

TEST(DataParallel, RanksAgreeBitForBitAndTheCheckSeesAWrongShare) {
  const auto three = gradients(3, DType::f64, true);
  EXPECT_EQ(three[0], three[1]);
  EXPECT_EQ(three[0], three[2]);
  std::vector<double> wrong = three[0];
  for (double& value : wrong) {
    value *= 1 + 1e-9;
  }
  EXPECT_FALSE(worst_error(wrong, three[0]) <= 1e-12);
  wrong = three[0];
  wrong[0] = NAN;
  EXPECT_FALSE(worst_error(wrong, three[0]) <= 1e-12);
}

TEST(DataParallel, BucketSizeDoesNotChangeTheBits) {
  EXPECT_EQ(gradients(2, DType::f64, true, 500)[0], gradients(2, DType::f64, false, 8000)[0]);
}

}  // namespace
}  // namespace lockstep::nn
