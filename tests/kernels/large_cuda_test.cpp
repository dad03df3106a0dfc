// Tests ops on tensors of more than 2^31 elements on a GPU, for ops whose last rows can be computed separately. The op
// runs over the complete tensor and then over the last rows only. Both runs must give the same bits. Ops whose rows
// depend on each other (sums, pools, transposes, statistics) are tested in OP_cuda_test.cpp.
#include <functional>
#include <string>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/adam.hpp>
#include <lockstep/kernels/augment.hpp>
#include <lockstep/kernels/dropout.hpp>
#include <lockstep/kernels/embedding.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/hash.hpp>
#include <lockstep/kernels/lars.hpp>
#include <lockstep/kernels/layer_norm.hpp>
#include <lockstep/kernels/lerp.hpp>
#include <lockstep/kernels/linear_epilogue.hpp>
#include <lockstep/kernels/regression_loss.hpp>
#include <lockstep/kernels/relu.hpp>
#include <lockstep/kernels/resized_crop.hpp>
#include <lockstep/kernels/scale.hpp>
#include <lockstep/kernels/softmax.hpp>
#include <lockstep/kernels/softmax_cross_entropy.hpp>
#include <lockstep/kernels/top_k.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using ops::Activation;
using ops::GradMode;

using Views = std::vector<TensorView>;

constexpr std::int64_t kColumns = 64;
const std::int64_t kRows = kLarge / kColumns + 5;
constexpr std::int64_t kLast = 3;  // number of last rows that are compared

TensorView last(const TensorView& view, std::int64_t count = kLast) {
  return view.slice(0, view.shape[0] - count, view.shape[0]);
}

class CudaLarge : public CudaTest {
 protected:
  /// Returns zeros, except for random integers in [0, below) in the last `count` entries of the first axis.
  Tensor ending(const Shape& shape, DType dtype, int below, std::int64_t count = kLast) {
    Tensor all = Tensor::zeros(cuda(), shape, dtype);
    const TensorView end = last(all, count);
    const Tensor host = Tensor::empty(cpu(), end.shape, dtype);
    Random random(++drawn_, RandomUse::test);
    std::vector<double> values(static_cast<std::size_t>(end.numel()));
    for (double& value : values) {
      value = static_cast<double>(random.below(static_cast<std::uint32_t>(below)));
    }
    from_doubles(values, host);
    copy(cuda(), host, end);
    cuda().synchronize();
    return all;
  }
  Tensor rows() { return ending(Shape{kRows, kColumns}, DType::bf16, 7); }
  Tensor vector_of(double value, DType dtype) {
    Tensor vector = Tensor::empty(cuda(), Shape{kColumns}, dtype);
    ops::fill(cuda(), value, vector);
    return vector;
  }

  /// Calls run(in, out) on the complete tensors and on views of their last `count` entries. Expects the same bits. In
  /// both runs the outputs start with the same values, because some ops also read them.
  void expect_last_alike(const std::string& what, const Views& in, const Views& out,
                         const std::function<void(const Views& in, const Views& out)>& run,
                         std::int64_t count = kLast) {
    Views last_in;
    for (const TensorView& view : in) {
      last_in.push_back(last(view, count));
    }
    std::vector<Tensor> alone;
    Views last_out;
    for (const TensorView& view : out) {
      const TensorView end = last(view, count);
      alone.push_back(Tensor::empty(cuda(), end.shape, end.dtype));
      copy(cuda(), end, alone.back());
      last_out.push_back(alone.back());
    }
    run(last_in, last_out);
    run(in, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::vector<double> expected = fetch(last_out[i]);
      EXPECT_EQ(fetch(last(out[i], count)), expected) << what << ": output " << i;
      EXPECT_NE(expected, std::vector<double>(expected.size(), 0.0)) << what << ": output " << i << " shows nothing";
    }
  }

 private:
  std::uint64_t drawn_ = 0;
};

TEST_F(CudaLarge, Elementwise) {
  run_large([&] {
    const Tensor x = rows();
    const Tensor dy = rows();
    const Tensor y = Tensor::zeros(cuda(), x.shape(), DType::bf16);
    const Tensor factor = Tensor::empty(cuda(), Shape{}, DType::f32);
    ops::fill(cuda(), 0.375, factor);
    expect_last_alike("relu", {x}, {y},
                      [&](const Views& in, const Views& out) { ops::relu_forward(cuda(), in[0], out[0]); });
    expect_last_alike("activation forward", {x}, {y}, [&](const Views& in, const Views& out) {
      ops::activation_forward(cuda(), Activation::gelu, in[0], out[0]);
    });
    expect_last_alike("activation backward", {x, dy}, {y}, [&](const Views& in, const Views& out) {
      ops::activation_backward(cuda(), Activation::silu, in[0], in[1], out[0]);
    });
    expect_last_alike("scale", {x}, {y},
                      [&](const Views& in, const Views& out) { ops::scale(cuda(), factor, in[0], out[0]); });
    expect_last_alike("lerp", {dy}, {y},
                      [&](const Views& in, const Views& out) { ops::lerp(cuda(), 0.25, in[0], out[0]); });
  });
}

TEST_F(CudaLarge, Rows) {
  run_large([&] {
    const Tensor x = rows();
    const Tensor dy = rows();
    const Tensor y = Tensor::zeros(cuda(), x.shape(), DType::bf16);
    const Tensor weight = vector_of(1.5, DType::f32);
    const Tensor bias = vector_of(0.25, DType::f32);
    expect_last_alike("softmax forward", {x}, {y}, [&](const Views& in, const Views& out) {
      ops::softmax_forward(cuda(), in[0], 0.5, ops::SoftmaxMask::none, out[0]);
    });
    expect_last_alike("softmax backward", {dy, y}, {x}, [&](const Views& in, const Views& out) {
      ops::softmax_backward(cuda(), in[1], in[0], 0.5, out[0]);
    });
    const Tensor mean = Tensor::zeros(cuda(), Shape{kRows}, DType::f32);
    const Tensor inv_std = Tensor::zeros(cuda(), Shape{kRows}, DType::f32);
    expect_last_alike("layer norm forward", {dy}, {y, mean, inv_std}, [&](const Views& in, const Views& out) {
      ops::layer_norm_forward(cuda(), in[0], weight, bias, 1e-5, out[0], out[1], out[2]);
    });
    expect_last_alike("layer norm backward", {y, dy, mean, inv_std}, {x}, [&](const Views& in, const Views& out) {
      ops::layer_norm_backward(cuda(), in[0], in[1], weight, in[2], in[3], GradMode::ignore, out[0], {}, {}, {});
    });
    expect_last_alike("epilogue forward", {dy, y}, {x}, [&](const Views& in, const Views& out) {
      ops::linear_epilogue_forward(cuda(), Activation::relu, in[0], bias, in[1], out[0]);
    });
    expect_last_alike("epilogue backward", {x, dy}, {y}, [&](const Views& in, const Views& out) {
      ops::linear_epilogue_backward(cuda(), Activation::gelu_tanh, in[0], bias, in[1], GradMode::ignore, out[0], {},
                                    {});
    });
  });
}

TEST_F(CudaLarge, SumsOverRows) {
  run_large([&] {
    // dy is zero except in the last rows, so the gradient of the bias is a sum over the last rows.
    const Tensor dy = rows();
    const Tensor dbias = Tensor::empty(cuda(), Shape{kColumns}, DType::f32);
    const auto bytes = static_cast<std::int64_t>(ops::linear_epilogue_workspace_bytes(cuda(), dy));
    const Tensor workspace = Tensor::empty(cuda(), Shape{bytes}, DType::u8);
    ops::linear_epilogue_backward(cuda(), Activation::identity, {}, {}, dy, GradMode::overwrite, {}, dbias, workspace);
    const std::vector<double> sums = fetch(dbias);
    const std::vector<double> end = fetch(last(dy));
    for (std::size_t c = 0; c < kColumns; ++c) {
      EXPECT_EQ(sums[c], end[c] + end[kColumns + c] + end[2 * kColumns + c]) << c;
    }
  });
}

TEST_F(CudaLarge, SamplesAndTokens) {
  run_large([&] {
    const Tensor x = rows();
    const Tensor y = Tensor::zeros(cuda(), x.shape(), DType::bf16);
    const Tensor sample_ids = ending(Shape{kRows}, DType::i64, 1000);
    const Tensor epoch = Tensor::zeros(cuda(), Shape{}, DType::i64);
    expect_last_alike("dropout", {x, sample_ids}, {y}, [&](const Views& in, const Views& out) {
      ops::dropout(cuda(), {.rate = 0.5, .seed = 3}, in[1], epoch, in[0], out[0]);
    });
    const Tensor table = ending(Shape{16, kColumns}, DType::bf16, 100, 16);
    const Tensor tokens = ending(Shape{kRows}, DType::i32, 16);
    expect_last_alike("embedding forward", {tokens}, {y}, [&](const Views& in, const Views& out) {
      ops::embedding_forward(cuda(), table, in[0], {}, {}, out[0], {});
    });
  });
}

TEST_F(CudaLarge, EmbeddingBackward) {
  run_large([&] {
    // Token 1 is the id of all the last rows and of no other row.
    const Tensor dy = rows();
    const Tensor tokens = Tensor::zeros(cuda(), Shape{kRows}, DType::i32);
    ops::fill(cuda(), 1, last(tokens));
    const Tensor dtable = Tensor::zeros(cuda(), Shape{2, kColumns}, DType::f32);
    const auto bytes = static_cast<std::int64_t>(ops::embedding_backward_workspace_bytes(cuda(), dtable));
    const Tensor workspace = Tensor::empty(cuda(), Shape{bytes}, DType::u8);
    ops::embedding_backward(cuda(), dy, tokens, GradMode::overwrite, dtable, workspace);
    const std::vector<double> sums = fetch(dtable);
    const std::vector<double> end = fetch(last(dy));
    for (std::size_t c = 0; c < kColumns; ++c) {
      EXPECT_EQ(sums[c], 0) << c;
      EXPECT_EQ(sums[kColumns + c], end[c] + end[kColumns + c] + end[2 * kColumns + c]) << c;
    }
  });
}

TEST_F(CudaLarge, Losses) {
  run_large([&] {
    const Tensor x = rows();
    const Tensor target = rows();
    const Tensor gradient = Tensor::zeros(cuda(), x.shape(), DType::bf16);
    const Tensor labels = Tensor::empty(cuda(), Shape{kRows}, DType::i32);
    ops::fill(cuda(), -1, labels);  // a row with label -1 does not count
    ops::fill(cuda(), kColumns - 1, last(labels));
    const auto workspace = [&](std::size_t bytes) {
      return Tensor::empty(cuda(), Shape{static_cast<std::int64_t>(bytes)}, DType::u8);
    };
    std::vector<std::vector<double>> metrics;
    expect_last_alike("softmax cross entropy", {x, labels}, {gradient}, [&](const Views& in, const Views& out) {
      const Tensor sums = Tensor::zeros(cuda(), Shape{3}, DType::f64);
      ops::softmax_cross_entropy(cuda(), in[0], in[1], {}, {}, {}, 0.1, out[0], sums,
                                 workspace(ops::softmax_cross_entropy_workspace_bytes(cuda(), in[0])));
      metrics.push_back(fetch(sums));
    });
    expect_last_alike("regression loss", {x, target}, {gradient}, [&](const Views& in, const Views& out) {
      const Tensor sums = Tensor::zeros(cuda(), Shape{3}, DType::f64);
      ops::regression_loss(cuda(), {}, in[0], in[1], {}, {}, {}, out[0], sums,
                           workspace(ops::regression_loss_workspace_bytes(cuda(), in[0])));
      metrics.push_back(fetch(sums));
    });
    const auto top_k = [&](const TensorView& logits, const TensorView& of) {
      const Tensor count = Tensor::zeros(cuda(), Shape{}, DType::f64);
      ops::top_k_correct(cuda(), logits, of, {}, {}, kColumns / 2, count,
                         workspace(ops::top_k_workspace_bytes(cuda(), logits)));
      return fetch(count)[0];
    };
    for (const std::size_t i : {0, 2}) {  // all rows before the last rows add nothing to the sums
      EXPECT_GT(metrics[i][0], 0);
      EXPECT_NEAR(metrics[i + 1][0], metrics[i][0], 1e-6 * metrics[i][0]) << i;
    }
    EXPECT_EQ(metrics[0][2], 0);
    EXPECT_EQ(metrics[1][2], kRows - kLast) << "labels out of range";
    ops::fill(cuda(), 100,
              x.view().slice(0, kRows - 2, kRows - 1).reshape(Shape{kColumns}).slice(0, kColumns - 1, kColumns));
    EXPECT_GE(top_k(x, labels), 1);
    EXPECT_EQ(top_k(x, labels), top_k(last(x), last(labels)));
  });
}

TEST_F(CudaLarge, Hash) {
  run_large([&] {
    const Tensor x = rows();
    const Tensor result = Tensor::empty(cuda(), Shape{}, DType::u64);
    const auto hash = [&](Context& context, const TensorView& of) {
      std::uint64_t value = 0;
      const TensorView host(std::span(&value, 1), Shape{});
      const bool on_gpu = context.device().kind == DeviceKind::cuda;
      ops::hash_range(context, of, on_gpu ? result.view() : host);
      if (on_gpu) {
        copy(context, result, host);
      }
      context.synchronize();
      return value;
    };
    const Tensor host = Tensor::empty(cpu(), x.shape(), DType::bf16);
    copy(cuda(), x, host);
    cuda().synchronize();
    const std::uint64_t expected = hash(cpu(), host);
    EXPECT_EQ(hash(cuda(), x), expected);
    ops::fill(cuda(), 9, x.view().reshape(Shape{x.view().numel()}).slice(0, x.view().numel() - 1, x.view().numel()));
    EXPECT_NE(hash(cuda(), x), expected);
  });
}

TEST_F(CudaLarge, Adam) {
  run_large([&] {
    const std::int64_t kCount = kLarge + 77;
    constexpr std::int64_t kEnd = 40;
    const Tensor p = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor g = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor m = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor v = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor rate = Tensor::empty(cuda(), Shape{}, DType::f64);
    const Tensor step = Tensor::empty(cuda(), Shape{}, DType::i64);
    ops::fill(cuda(), 0.5, rate);
    ops::fill(cuda(), 3, step);
    const std::vector<ops::ArenaSegment> segments{{7, kCount - 9, 1, 0.1}};
    expect_last_alike(
        "adam", {g}, {p, m, v},
        [&](const Views& in, const Views& out) {
          ops::adam_update(cuda(), {},
                           {.segments = segments,
                            .begin = kCount - in[0].numel(),
                            .learning_rate = rate,
                            .parameters = out[0],
                            .gradients = in[0]},
                           step, out[1], out[2]);
        },
        kEnd);
  });
}

TEST_F(CudaLarge, Lars) {
  run_large([&] {
    // The arena has two segments. The second segment, at the end, must get its own trust ratio.
    const std::int64_t kCount = kLarge + 77;
    constexpr std::int64_t kEnd = 40;
    const Tensor p = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor g = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor velocity = ending(Shape{kCount}, DType::f32, 5, kEnd);
    const Tensor rate = Tensor::empty(cuda(), Shape{}, DType::f64);
    ops::fill(cuda(), 0.5, rate);
    const std::vector<ops::ArenaSegment> segments{{0, kCount - kEnd, 1, 0.1}, {kCount - kEnd, kEnd, 1, 0.1}};
    const auto bytes = static_cast<std::int64_t>(ops::lars_workspace_bytes(segments));
    const Tensor workspace = Tensor::empty(cuda(), Shape{bytes}, DType::u8);
    expect_last_alike(
        "lars", {g}, {p, velocity},
        [&](const Views& in, const Views& out) {
          ops::lars_update(cuda(), {.momentum = 0.5},
                           {.segments = segments,
                            .begin = kCount - in[0].numel(),
                            .learning_rate = rate,
                            .parameters = out[0],
                            .gradients = in[0]},
                           out[1], workspace);
        },
        kEnd);
  });
}

TEST_F(CudaLarge, Augment) {
  run_large([&] {
    const std::int64_t images = kLarge / (8 * 8 * 4) + 5;
    const Tensor pixels = ending(Shape{images, 8, 8, 3}, DType::u8, 256);
    const Tensor sample_ids = ending(Shape{images}, DType::i64, 1000);
    const Tensor epoch = Tensor::zeros(cuda(), Shape{}, DType::i64);
    const Tensor out = Tensor::zeros(cuda(), Shape{images, 8, 8, 4}, DType::bf16);
    expect_last_alike("augment", {pixels, sample_ids}, {out}, [&](const Views& in, const Views& to) {
      ops::augment(cuda(), {.pad = 1, .flip = true, .seed = 5}, in[0], in[1], epoch, {}, to[0]);
    });
  });
}

/// The pictures have more than 2^31 bytes, and so have the images. Only the last rows of the table show part of a
/// picture.
TEST_F(CudaLarge, ResizedCrop) {
  run_large([&] {
    constexpr std::int64_t kSide = 64;
    constexpr std::int64_t kBytes = kSide * kSide * 3;
    const std::int64_t images = kLarge / kBytes + 5;
    const Tensor pictures = ending(Shape{images, kBytes}, DType::u8, 256);
    const Tensor parts = Tensor::zeros(cuda(), Shape{images, ops::kPartColumns}, DType::f64);
    const Tensor host = Tensor::empty(cpu(), Shape{kLast, ops::kPartColumns}, DType::f64);
    std::vector<double> cells;
    for (std::int64_t n = 0; n < kLast; ++n) {
      cells.insert(cells.end(), {kSide, kSide, 0, 0, 0, 1, 0.75, 1, 49, 16, 0.75, 16, kSide});
    }
    from_doubles(cells, host);
    copy(cuda(), host, last(parts));
    cuda().synchronize();
    const Tensor out = Tensor::zeros(cuda(), Shape{images, kSide, kSide, 3}, DType::u8);
    expect_last_alike("resized_crop", {pictures, parts}, {out},
                      [&](const Views& in, const Views& to) { ops::resized_crop(cuda(), in[0], in[1], to[0]); });
  });
}

}  // namespace
}  // namespace lockstep::testing
