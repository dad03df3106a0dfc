#include <utility>

#include <lockstep/kernels/embedding.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

namespace {

/// Maps tokens (T) to (T, width): adds the token's row of NAME.weight (vocabulary, width) and the position's row of
/// POSITIONS.weight (T, width). Initial weights are normal with a standard deviation of 0.02 (Radford et al. 2018,
/// section 4.1).
class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(std::string name, std::string positions, std::int64_t vocabulary, std::int64_t width)
      : Layer(std::move(name)), positions_(std::move(positions)), vocabulary_(vocabulary), width_(width) {
    require<ShapeError>(vocabulary >= 1 && width >= 1, this->name(), ": vocabulary is ", vocabulary, ", width ", width,
                        ", expected at least 1 each");
  }
  [[nodiscard]] std::string kind() const override { return "embedding"; }
  [[nodiscard]] bool reads_tokens() const override { return true; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override {
    require<ShapeError>(inputs[0].rank() == 1, name(), ": input ", inputs[0], ", expected (T) tokens");
    return {inputs[0][0], width_};
  }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override {
    const auto spec = [&](const std::string& of, std::int64_t rows) {
      return ParameterSpec{.name = of + ".weight",
                           .shape = {rows, width_},
                           .dims = {rows, width_},
                           .axes = {0, 1},
                           .stored_last = width_,
                           .role = ParameterRole::weight,
                           .init = {Initialiser::Kind::normal, 0.02},
                           .embedding_table = true};
    };
    return {spec(name(), vocabulary_), spec(positions_, inputs[0][0])};
  }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
    const std::int64_t length = builder.input_shape()[0];
    const SlotId tokens = builder.input();
    const SlotId table = builder.weight(name() + ".weight");
    const SlotId positions = builder.weight(positions_ + ".weight");
    const SlotId valid = builder.state(StateField::valid);
    const SlotId metrics = builder.state(StateField::metrics);
    const SlotId y = builder.activation(name(), builder.batched({length, width_}));
    builder.call("embedding forward", {tokens, table, positions, valid, metrics}, {y, metrics}, 0,
                 [=](Context& context, const Frame& frame) {
                   const TensorView out_of_range = frame[metrics].slice(0, 2, 3).reshape({});
                   ops::embedding_forward(context, frame[table], frame[tokens], frame[positions], frame[valid],
                                          frame[y], out_of_range);
                 });
    builder.set_output(y);

    const std::int64_t sequences = builder.batch();
    builder.on_backward([=, this](PlanBuilder& b) {
      const SlotId dy = b.output_gradients()[0];
      const GradientTarget dtable = b.parameter_gradient(name() + ".weight");
      if (dtable.wanted()) {
        const SlotId scratch =
            b.scratch(ops::embedding_backward_workspace_bytes(b.context(), b.prototype(dtable.slot)));
        b.call("embedding backward", {dy, tokens, dtable.slot}, {dtable.slot, scratch}, 0,
               [=](Context& context, const Frame& frame) {
                 ops::embedding_backward(context, frame[dy], frame[tokens], dtable.mode, frame[dtable.slot],
                                         frame[scratch]);
               });
      }
      b.reduce_rows(dy, {sequences, length * width_}, b.parameter_gradient(positions_ + ".weight"));
    });
  }

 private:
  std::string positions_;
  std::int64_t vocabulary_;
  std::int64_t width_;
};

}  // namespace

NodeId ModelBuilder::embedding(const std::string& name, const std::string& positions, NodeId tokens,
                               std::int64_t vocabulary, std::int64_t width) {
  return add(std::make_shared<EmbeddingLayer>(name, positions, vocabulary, width), {tokens});
}

}  // namespace lockstep::nn
