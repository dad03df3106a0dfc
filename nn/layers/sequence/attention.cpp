#include <cmath>

#include <lockstep/kernels/softmax.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/runtime/base/align.hpp>

namespace lockstep::nn {

namespace {

enum Third : int { kQueries, kKeys, kValues, kWhole };

/// Operand or result of a product: a whole slot, or the queries, keys or values in a slot.
struct Operand {
  SlotId slot;
  Third third = kWhole;
};

/// Layout of the heads' matrices in memory. Each matrix is contiguous, and the matrices lie one after the other.
struct Heads {
  std::int64_t batch, length, heads, head;  ///< `head` is the number of columns of one head
  std::int64_t items;                       ///< number of matrices: batch * heads
  std::int64_t part;  ///< distance in elements from queries to keys, and from keys to values; a multiple of 16 bytes

  Heads(std::int64_t of_batch, std::int64_t of_length, std::int64_t of_heads, std::int64_t columns, DType dtype)
      : batch(of_batch),
        length(of_length),
        heads(of_heads),
        head(columns),
        items(batch * heads),
        part(align_up(items * length * head, 16 / static_cast<std::int64_t>(size_of(dtype)))) {}

  // In the names of the functions below, "joined" means (B, T, 3, heads, D), and "split" means (3, B, heads, T, D).
  // "mixed" means without the axis of length 3.
  [[nodiscard]] Shape joined() const { return {batch, length, 3, heads, head}; }
  [[nodiscard]] Shape joined_mixed() const { return {batch, length, heads, head}; }
  [[nodiscard]] Shape split_mixed() const { return {batch, heads, length, head}; }
  [[nodiscard]] TensorView thirds(const TensorView& all) const {
    const Shape split{3, batch, heads, length, head};
    Strides strides = contiguous_strides(split);
    strides[0] = part;
    return TensorView(all.data, all.dtype, all.device, split, strides);
  }
  /// Returns a view of the operand: the queries, keys or values as (B * heads, T, D), or the whole slot.
  [[nodiscard]] TensorView view(const Frame& frame, Operand of) const {
    if (of.third == kWhole) {
      return frame[of.slot];
    }
    return frame[of.slot]
        .slice(0, of.third, of.third + 1)
        .reshape({part})
        .slice(0, 0, items * length * head)
        .reshape({items, length, head});
  }

  /// Appends the product c = a b for each head. `plan` says how each product is computed.
  void product(PlanBuilder& builder, const std::string& what, const std::shared_ptr<const ops::MatmulPlan>& plan,
               Operand a, Operand b, Operand c) const {
    const SlotId scratch = builder.scratch(plan->workspace_bytes());
    builder.call(
        "matmul " + what + ' ' + plan->choice(), a.slot == b.slot ? std::vector{a.slot} : std::vector{a.slot, b.slot},
        {c.slot, scratch}, plan->desc().flops(), [=, h = *this](Context& context, const Frame& frame) {
          ops::matmul(context, *plan, h.view(frame, a), h.view(frame, b), {}, h.view(frame, c), frame[scratch]);
        });
  }
};

/// Maps (T, 3 C) to (T, C). For each head, with D = C / heads columns, computes softmax(q k^T / sqrt(D)) v.
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
  const std::int64_t length = builder.input_shape()[0];
  const std::int64_t width = builder.input_shape()[1] / 3;
  const std::int64_t head = width / options_.heads;  // number of columns of one head
  const DType dtype = builder.dtype();
  const Heads h(builder.batch(), length, options_.heads, head, dtype);
  const double scale = 1 / std::sqrt(static_cast<double>(head));
  const ops::SoftmaxMask mask = options_.causal ? ops::SoftmaxMask::causal : ops::SoftmaxMask::none;

  const SlotId qkv = builder.input();
  const SlotId parts = builder.activation(name() + ".heads", {3, h.part});
  builder.call("strided_copy", {qkv}, {parts}, 0, [=](Context& context, const Frame& frame) {
    ops::strided_copy(context, frame[qkv].reshape(h.joined()).permute({2, 0, 3, 1, 4}), h.thirds(frame[parts]));
  });

  // scores = q k^T; the softmax later overwrites the scores with the weights.
  const SlotId weights = builder.activation(name() + ".weights", {h.items, length, length});
  const auto scores = builder.matmul(
      name() + " scores", {.dtype = dtype, .batch = h.items, .m = length, .n = length, .k = head, .transpose_b = true});
  h.product(builder, "forward", scores, {parts, kQueries}, {parts, kKeys}, {weights});
  builder.call("softmax forward", {weights}, {weights}, 0, [=](Context& context, const Frame& frame) {
    ops::softmax_forward(context, frame[weights], scale, mask, frame[weights]);
  });

  // y = weights v
  const SlotId mixed = builder.activation(name() + ".mixed", {h.items, length, head});
  const auto mix =
      builder.matmul(name() + " mix", {.dtype = dtype, .batch = h.items, .m = length, .n = head, .k = length});
  h.product(builder, "forward", mix, {weights}, {parts, kValues}, {mixed});
  const SlotId y = builder.activation(name(), builder.batched({length, width}));
  builder.call("strided_copy", {mixed}, {y}, 0, [=](Context& context, const Frame& frame) {
    ops::strided_copy(context, frame[mixed].reshape(h.split_mixed()).permute({0, 2, 1, 3}),
                      frame[y].reshape(h.joined_mixed()));
  });
  builder.set_output(y);

  builder.on_backward([=, this](PlanBuilder& b) {
    const SlotId dy = b.output_gradients()[0];
    const SlotId dmixed = b.activation("d(" + name() + ".mixed)", {h.items, length, head});
    b.call("strided_copy", {dy}, {dmixed}, 0, [=](Context& context, const Frame& frame) {
      ops::strided_copy(context, frame[dy].reshape(h.joined_mixed()).permute({0, 2, 1, 3}),
                        frame[dmixed].reshape(h.split_mixed()));
    });

    // dv = weights^T dmixed, dweights = dmixed v^T
    const SlotId dparts = b.activation("d(" + name() + ".heads)", {3, h.part});
    const auto turned =
        b.matmul(name() + " backward_turned",
                 {.dtype = dtype, .batch = h.items, .m = length, .n = head, .k = length, .transpose_a = true});
    h.product(b, "backward_values", turned, {weights}, {dmixed}, {dparts, kValues});
    const SlotId dweights = b.activation("d(" + name() + ".weights)", {h.items, length, length});
    h.product(b, "backward_weights", scores, {dmixed}, {parts, kValues}, {dweights});
    b.call("softmax backward", {weights, dweights}, {dweights}, 0, [=](Context& context, const Frame& frame) {
      ops::softmax_backward(context, frame[weights], frame[dweights], scale, frame[dweights]);
    });

    // dq = dscores k, dk = dscores^T q
    h.product(b, "backward_queries", mix, {dweights}, {parts, kKeys}, {dparts, kQueries});
    h.product(b, "backward_keys", turned, {dweights}, {parts, kQueries}, {dparts, kKeys});
    const GradientTarget dqkv = b.input_gradient(0, {}, false);
    if (dqkv.wanted()) {
      b.call("strided_copy", {dparts}, {dqkv.slot}, 0, [=](Context& context, const Frame& frame) {
        ops::strided_copy(context, h.thirds(frame[dparts]).permute({1, 3, 0, 2, 4}),
                          frame[dqkv.slot].reshape(h.joined()));
      });
    }
  });
}

}  // namespace

NodeId ModelBuilder::attention(const std::string& name, NodeId qkv, const AttentionOptions& options) {
  return add(std::make_shared<AttentionLayer>(name, options), {qkv});
}

}  // namespace lockstep::nn
