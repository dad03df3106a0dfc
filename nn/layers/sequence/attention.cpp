#include <cmath>

#include <lockstep/kernels/softmax.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/runtime/base/align.hpp>

namespace lockstep::nn {

namespace {

/// (T, 3 C) -> (T, C): softmax(q k^T / sqrt(D)) v for each of the heads of D = C / heads columns.
class AttentionLayer final : public Layer {
 public:
  AttentionLayer(std::string name, const AttentionOptions& options) : Layer(std::move(name)), options_(options) {
    require<ShapeError>(options.heads >= 1, this->name(), ": heads is ", options.heads, ", expected at least 1");
  }
  [[nodiscard]] std::string kind() const override { return "attention"; }
  [[nodiscard]] std::string settings() const override {
    return concat("heads ", options_.heads, options_.causal ? ", causal" : "");
  }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0].rank() == 2 && inputs[0][1] % (3 * options_.heads) == 0, name(), ": input ",
                        inputs[0], ", expected (T, 3 C) with C a multiple of ", options_.heads, " heads");
    return {inputs[0][0], inputs[0][1] / 3};
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override;

 private:
  AttentionOptions options_;
};

void AttentionLayer::plan(PlanBuilder& builder) const {
  const std::int64_t batch = builder.batch();
  const std::int64_t length = builder.input_shape()[0];
  const std::int64_t width = builder.input_shape()[1] / 3;
  const std::int64_t heads = options_.heads;
  const std::int64_t head = width / heads;  // columns of one
  const std::int64_t items = batch * heads;
  const DType dtype = builder.dtype();
  const double scale = 1 / std::sqrt(static_cast<double>(head));
  const ops::SoftmaxMask mask = options_.causal ? ops::SoftmaxMask::causal : ops::SoftmaxMask::none;

  // A head's matrices lie whole, one behind the other: (B, T, 3, heads, D) <-> (3, B, heads, T, D).
  const Shape joined{batch, length, 3, heads, head};
  const Shape split{3, batch, heads, length, head};
  // Queries, keys and values begin at a multiple of 16 bytes each, as libraries want their operands.
  const std::int64_t part = align_up(items * length * head, 16 / static_cast<std::int64_t>(size_of(dtype)));
  const auto third = [=](const TensorView& all, int which) {  // queries, keys or values: (B * heads, T, D)
    return all.slice(0, which, which + 1)
        .reshape({part})
        .slice(0, 0, items * length * head)
        .reshape({items, length, head});
  };
  const auto thirds = [=](const TensorView& all) {
    Strides strides = contiguous_strides(split);
    strides[0] = part;
    return TensorView(all.data, all.dtype, all.device, split, strides);
  };

  const SlotId qkv = builder.input();
  const SlotId parts = builder.activation(name() + ".heads", {3, part});
  builder.call("strided_copy", {qkv}, {parts}, 0, [=](Context& context, const Frame& frame) {
    ops::strided_copy(context, frame[qkv].reshape(joined).permute({2, 0, 3, 1, 4}), thirds(frame[parts]));
  });

  // scores = q k^T; softmax in place.
  const SlotId weights = builder.activation(name() + ".weights", {items, length, length});
  const ops::MatmulDesc scores{
      .dtype = dtype, .batch = items, .m = length, .n = length, .k = head, .transpose_b = true};
  const auto scores_plan = builder.matmul(name() + " scores", scores);
  const SlotId scores_scratch = builder.scratch(scores_plan->workspace_bytes());
  builder.call("matmul forward " + scores_plan->choice(), {parts}, {weights, scores_scratch}, scores.flops(),
               [=](Context& context, const Frame& frame) {
                 ops::matmul(context, *scores_plan, third(frame[parts], 0), third(frame[parts], 1), {}, frame[weights],
                             frame[scores_scratch]);
               });
  builder.call("softmax forward", {weights}, {weights}, 0, [=](Context& context, const Frame& frame) {
    ops::softmax_forward(context, frame[weights], scale, mask, frame[weights]);
  });

  // y = weights v
  const SlotId mixed = builder.activation(name() + ".mixed", {items, length, head});
  const ops::MatmulDesc mix{.dtype = dtype, .batch = items, .m = length, .n = head, .k = length};
  const auto mix_plan = builder.matmul(name() + " mix", mix);
  const SlotId mix_scratch = builder.scratch(mix_plan->workspace_bytes());
  builder.call("matmul forward " + mix_plan->choice(), {weights, parts}, {mixed, mix_scratch}, mix.flops(),
               [=](Context& context, const Frame& frame) {
                 ops::matmul(context, *mix_plan, frame[weights], third(frame[parts], 2), {}, frame[mixed],
                             frame[mix_scratch]);
               });
  const Shape joined_mixed{batch, length, heads, head};
  const Shape split_mixed{batch, heads, length, head};
  const SlotId y = builder.activation(name(), builder.batched({length, width}));
  builder.call("strided_copy", {mixed}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::strided_copy(context, frame[mixed].reshape(split_mixed).permute({0, 2, 1, 3}), frame[y].reshape(joined_mixed));
  });
  builder.set_output(y);

  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const SlotId dmixed = b.activation("d(" + name() + ".mixed)", {items, length, head});
    b.call("strided_copy", {dy}, {dmixed}, 0, [=](Context& context, const Frame& frame) {
      ops::strided_copy(context, frame[dy].reshape(joined_mixed).permute({0, 2, 1, 3}),
                        frame[dmixed].reshape(split_mixed));
    });

    // dv = weights^T dmixed, dweights = dmixed v^T
    const SlotId dparts = b.activation("d(" + name() + ".heads)", {3, part});
    const ops::MatmulDesc turned{
        .dtype = dtype, .batch = items, .m = length, .n = head, .k = length, .transpose_a = true};
    const auto turned_plan = b.matmul(name() + " backward_turned", turned);
    const SlotId turned_scratch = b.scratch(turned_plan->workspace_bytes());
    b.call("matmul backward_values " + turned_plan->choice(), {weights, dmixed}, {dparts, turned_scratch},
           turned.flops(), [=](Context& context, const Frame& frame) {
             ops::matmul(context, *turned_plan, frame[weights], frame[dmixed], {}, third(frame[dparts], 2),
                         frame[turned_scratch]);
           });
    const SlotId dweights = b.activation("d(" + name() + ".weights)", {items, length, length});
    const SlotId dweights_scratch = b.scratch(scores_plan->workspace_bytes());
    b.call("matmul backward_weights " + scores_plan->choice(), {dmixed, parts}, {dweights, dweights_scratch},
           scores.flops(), [=](Context& context, const Frame& frame) {
             ops::matmul(context, *scores_plan, frame[dmixed], third(frame[parts], 2), {}, frame[dweights],
                         frame[dweights_scratch]);
           });
    b.call("softmax backward", {weights, dweights}, {dweights}, 0, [=](Context& context, const Frame& frame) {
      ops::softmax_backward(context, frame[weights], frame[dweights], scale, frame[dweights]);
    });

    // dq = dscores k, dk = dscores^T q
    const SlotId dq_scratch = b.scratch(mix_plan->workspace_bytes());
    b.call("matmul backward_queries " + mix_plan->choice(), {dweights, parts}, {dparts, dq_scratch}, mix.flops(),
           [=](Context& context, const Frame& frame) {
             ops::matmul(context, *mix_plan, frame[dweights], third(frame[parts], 1), {}, third(frame[dparts], 0),
                         frame[dq_scratch]);
           });
    const SlotId dk_scratch = b.scratch(turned_plan->workspace_bytes());
    b.call("matmul backward_keys " + turned_plan->choice(), {dweights, parts}, {dparts, dk_scratch}, turned.flops(),
           [=](Context& context, const Frame& frame) {
             ops::matmul(context, *turned_plan, frame[dweights], third(frame[parts], 0), {}, third(frame[dparts], 1),
                         frame[dk_scratch]);
           });
    const GradientTarget dqkv = b.input_gradient(0, {}, false);
    if (dqkv.wanted()) {
      b.call("strided_copy", {dparts}, {dqkv.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::strided_copy(context, thirds(frame[dparts]).permute({1, 3, 0, 2, 4}), frame[dqkv.slot].reshape(joined));
      });
    }
  });
}

}  // namespace

NodeId ModelBuilder::attention(const std::string& name, NodeId qkv, const AttentionOptions& options) {
  return add(std::make_shared<AttentionLayer>(name, options), {qkv});
}

}  // namespace lockstep::nn
