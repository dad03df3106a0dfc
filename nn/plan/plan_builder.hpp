#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/kernels/pool2d.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/choice_verifier.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

/// Destination of a gradient that a layer computes. `mode` says whether the layer overwrites the slot or adds to it.
struct GradientTarget {
  SlotId slot;
  ops::GradMode mode = ops::GradMode::ignore;
  [[nodiscard]] bool wanted() const { return mode != ops::GradMode::ignore; }
};

/// Tensors of a batch norm that does not compute its output. Instead, the layer that reads the output computes the
/// output from these tensors.
struct UnappliedNorm {
  SlotId coefficients, stats;
  std::string name;  ///< name of the batch norm's layer
};

/// A batch norm with a ReLU. The norm's backward accepts a MaskedGradient from the convolution after the ReLU (ConvNorm
/// in kernels/conv2d.hpp). If `x2` is valid, `x2` is the input of a second batch norm, in the shortcut, and both norms
/// get the same gradient.
struct FusibleNorm {
  SlotId mask, x, coefficients;
  SlotId x2{}, coefficients2{};
};

/// `g` is the gradient of a FusibleNorm's output after the mask of the ReLU. `sums` are the sums over `g` that the norm
/// needs, of shape (2, C), or (3, C) if FusibleNorm::x2 is valid.
struct MaskedGradient {
  SlotId g, sums;
};

/// `dy` is the gradient of a max pool's output. `index` is the position of the maximum in each window.
/// batch_norm_pool.hpp computes the gradient of the batch norm before the pool from these tensors.
struct PooledGradient {
  SlotId dy, index;
  ops::PoolDesc desc;
};

/// Functions for Layer::plan(): they make slots, append calls, and find the tensors of the node that is being planned.
/// Plan's constructor and the layers use a PlanBuilder, which exists only while a plan is made.
class PlanBuilder {
 public:
  PlanBuilder(Context& context, const Model& model, Mode mode, std::int64_t batch, const PlanOptions& options);

  /// Plans input, layers, loss and backward, and places every slot in the workspace. May be called only once.
  [[nodiscard]] PlanContents build();

  /// Context for the calls being planned: the plan's own, or PlanOptions::beside within beside().
  [[nodiscard]] Context& context() { return *context_; }
  [[nodiscard]] Mode mode() const { return mode_; }
  /// Returns true if PlanOptions::fusions is on for this device. Returns false with PlanOptions::jvp, because fused
  /// calls have no rules for tangents, and with inference_pass, because fused batch norms use the statistics of the
  /// batch.
  [[nodiscard]] bool fuses() const {
    return !options_.jvp && !options_.inference_pass &&
           (options_.fusions == Fusions::on ||
            (options_.fusions == Fusions::automatic && context_->device().kind == DeviceKind::cuda));
  }
  [[nodiscard]] bool training() const { return mode_ == Mode::train; }
  /// Returns true if forward computes the same output as inference: with PlanOptions::inference_pass, or if not
  /// training.
  [[nodiscard]] bool infers() const { return !training() || options_.inference_pass; }
  [[nodiscard]] DType dtype() const { return options_.dtype; }
  [[nodiscard]] DType statistics_dtype() const { return ops::accumulation_dtype(options_.dtype); }
  [[nodiscard]] const PlanOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }

  // --- the node being planned
  /// Returns the slot of the node's i-th input, whose shape is (batch, shape of a sample).
  [[nodiscard]] SlotId input(int i = 0) const { return producer(i).output; }
  [[nodiscard]] const Shape& input_shape(int i = 0) const { return producer_node(i).shape; }  ///< shape of one sample
  /// Returns the shape of a batch of samples of shape `sample`: (batch, sample...).
  [[nodiscard]] Shape batched(const Shape& sample) const;
  /// Returns the slot of a parameter in the optimizer's type, accumulation_dtype(dtype()). Used for biases and
  /// parameters of norms.
  [[nodiscard]] SlotId parameter(const std::string& name);
  /// Returns the slot of a parameter in dtype(). Used for weights of convolutions and products, and for embedding
  /// tables. Unless dtype() has 16 bits, the result equals parameter(name).
  [[nodiscard]] SlotId weight(const std::string& name);
  [[nodiscard]] SlotId buffer(const std::string& name);
  [[nodiscard]] SlotId state(StateField field);
  [[nodiscard]] SlotId loss_scale();  ///< slot of ParameterSet::loss_scale()
  [[nodiscard]] SlotId weight_sum();  ///< slot of ParameterSet::weight_sum(), the sum of the loss weights
  /// Returns true if the node's output may overwrite its i-th input: no other node reads the input, and backward does
  /// not need its value.
  [[nodiscard]] bool may_overwrite_input(int i = 0) const;
  void set_output(SlotId slot);  ///< sets the current node's output; Layer::plan() must call this exactly once
  /// Returns true if the current node, a batch norm, may skip its output: only one layer reads the output, and this
  /// layer can compute the output itself (Layer::takes_norm()). The node may then call leave_norm_unapplied(). In this
  /// case, the node's output slot must be its input slot.
  [[nodiscard]] bool may_leave_norm_unapplied(bool relu) const;
  void leave_norm_unapplied(UnappliedNorm norm) { here().unapplied = std::move(norm); }
  /// Returns the UnappliedNorm of the node that makes the i-th input. If the coefficients in the UnappliedNorm are
  /// invalid, the i-th input is an ordinary output.
  [[nodiscard]] const UnappliedNorm& unapplied_norm(int i) const { return producer(i).unapplied; }

  /// Finds out whether the next layer is a batch norm that can use channel sums computed by the current node. If so,
  /// returns the slot of the norm's buffer that estimates the channel means (Layer::sums_wanted_near()). The node may
  /// then call leave_sums() with sums of shape (2, C), which must be sums of deviations from this buffer. Returns an
  /// invalid slot if no layer or several layers read `output`, or if the only reader uses no sums. `output` must be the
  /// current node's output.
  [[nodiscard]] SlotId sums_wanted_near(SlotId output);
  void leave_sums(SlotId sums) { here().sums = sums; }
  /// Returns the slot that the node of the first input passed to leave_sums(), or an invalid slot.
  [[nodiscard]] SlotId input_sums() const { return producer(0).sums; }

  // --- slots
  [[nodiscard]] SlotId activation(const std::string& name, const Shape& shape);  ///< new slot in the plan's dtype
  [[nodiscard]] SlotId statistics(const std::string& name, const Shape& shape);  ///< new slot in statistics_dtype()
  [[nodiscard]] SlotId tensor(const std::string& name, const Shape& shape, DType dtype);
  [[nodiscard]] SlotId scratch(std::size_t bytes);  ///< new slot of u8 for use in one call; an invalid slot for 0 bytes
  [[nodiscard]] SlotId alias(SlotId of, const std::string& name,
                             const Shape& shape);         ///< new slot in `of`'s memory; later calls must not use `of`
  [[nodiscard]] TensorView prototype(SlotId slot) const;  ///< view with the shape and dtype of a slot, without memory

  // --- calls
  /// Appends a call. `reads` and `writes` must name every slot that `run` touches. A slot that `run` overwrites without
  /// reading must not be in `reads`. `launches` becomes Call::launches.
  void call(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
            std::function<void(Context&, const Frame&)> run, int launches = 1);
  /// Appends a call that is never computed again (PlanOptions::recompute). Use this for a call that communicates,
  /// increments a counter, or has another effect than to compute `writes` from `reads`.
  void call_once(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
                 std::function<void(Context&, const Frame&)> run, int launches = 1);
  /// Appends a call that is a cooperative launch on a GPU (kernels/cuda/grid.hpp). All such calls of a plan must run on
  /// one stream. So the function throws StateError within beside() if the plan has a side stream (PlanOptions::beside).
  void call_together(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
                     std::function<void(Context&, const Frame&)> run);
  /// Appends an all-gather over the ranks of PlanOptions::exchange. Returns a slot of shape (ranks, elements of `own`),
  /// which holds the values of `own` from every rank, in rank order. Throws StateError without an exchange, and within
  /// beside() if the plan has a side stream (PlanOptions::beside).
  [[nodiscard]] SlotId all_gather(const std::string& op, SlotId own, const std::string& name);

  /// Calls plan(), which appends calls for the side stream. These should be long calls whose results no other call of
  /// the plan needs, for example gradients of weights. If PlanOptions::beside is given, context() returns that context
  /// within plan(), and the calls run on the stream of that context, where they may overlap later calls. Slots of calls
  /// that may overlap do not share memory.
  template <class F>
  void beside(F&& plan) {
    const Beside scope{*this, std::exchange(context_, options_.beside != nullptr ? options_.beside : context_)};
    plan();
  }

  /// Subtracts the bytes of `slot` from Call::bytes of the last call. Use this if that call reads `slot` only in rare
  /// cases, for example if a batch is not full.
  void seldom_read(SlotId slot) { contents_.calls.back().bytes -= static_cast<double>(info_of(slot).bytes); }

  /// Appends a call that sums the rows of `dy`, viewed in the shape `rows` (M, C), into the gradient `dbias` of a bias.
  /// Appends nothing if `dbias` is not wanted.
  void reduce_rows(SlotId dy, const Shape& rows, const GradientTarget& dbias);
  /// Plans a library call (plan_conv2d, plan_matmul) with make(choice). `choice` is the choice for `key` in the
  /// options, or an empty text for the provider's default. Records the choice of the resulting plan.
  template <class Make>
  [[nodiscard]] auto planned(const std::string& key, Make&& make) {
    auto plan = shared(make_with_choice(key, make));
    if (options_.verifier) {
      plan = options_.verifier->checked(*context_, std::move(plan));
    }
    contents_.choices[key] = plan->choice();
    contents_.library_plans.push_back({key, plan});
    return plan;
  }

  /// Plans a matrix product: planned() with plan_matmul(), and with tf32 from the plan's options.
  [[nodiscard]] std::shared_ptr<const ops::MatmulPlan> matmul(const std::string& key, ops::MatmulDesc desc);

  // --- backward (train mode only; other modes ignore it)
  /// Registers `emit`, which appends the node's backward calls. The builder calls `emit` after all forward calls are
  /// planned, in reverse order of the layers. Within `emit`, this node is the current node again.
  void on_backward(std::function<void(PlanBuilder&)> emit);
  /// Returns the gradients of the node's output, at most Layer::gradients_taken().
  [[nodiscard]] std::span<const SlotId> output_gradients() const { return here().gradients; }
  /// Returns the destination of the gradient of the i-th input. GradientTarget::wanted() is false if no gradient is
  /// needed: the i-th input is the model's input, or all parameters before this layer are frozen. `reuse` may be a
  /// gradient slot that the next call reads for the last time. A new gradient slot then uses the memory of `reuse`. If
  /// the layer cannot add to a gradient, `can_accumulate` must be false. The function then returns a separate slot,
  /// which the next call must write. The builder appends a call that adds this slot to the other gradients.
  [[nodiscard]] GradientTarget input_gradient(int i, SlotId reuse = {}, bool can_accumulate = true);
  /// Returns true if input_gradient(i) is wanted and would return a new slot that needs no sum with another gradient.
  [[nodiscard]] bool first_input_gradient(int i) const;
  [[nodiscard]] bool wants_input_gradient(int i) const { return producer(i).trains; }
  /// Calls f() with the node that makes the i-th input as the current node. In this way, the caller can append the
  /// backward calls of that node.
  template <class F>
  void as_input(int i, F&& f) {
    const int reader = std::exchange(current_, node().inputs[static_cast<std::size_t>(i)].index);
    f();
    current_ = reader;
  }
  /// Returns a slot for a tensor that replaces `dy`, a gradient of the output. The slot uses the memory of `dy`. If
  /// pass_gradient() has shared `dy` with several nodes, the slot has its own memory instead.
  [[nodiscard]] SlotId overwrite_gradient(SlotId dy, const std::string& name);
  /// Makes `dy`, a gradient of the output, also the gradient of the i-th input, without a copy. Several inputs may
  /// share `dy`, so no later call may write into it.
  void pass_gradient(int i, SlotId dy);
  /// Passes `gradient` to the batch norm of unapplied_norm(0), in place of the gradient of its output.
  void pass_pooled_gradient(const PooledGradient& gradient);
  /// Returns the PooledGradient that pass_pooled_gradient() gave to this node. If the node got none, `dy` of the result
  /// is invalid.
  [[nodiscard]] const PooledGradient& pooled_gradient() const { return here().pooled; }
  /// Declares, while forward is planned, that the node's backward accepts a MaskedGradient.
  void offer_norm(const FusibleNorm& norm) { here().fusible = norm; }
  /// Returns the FusibleNorm that the node of the first input has offered. Returns nullptr if the node has offered none
  /// or needs no gradient, if the current node does not compute the last missing gradient of that node's output, or if
  /// more than one other gradient of that output exists. Sets `addend` to the other gradient, or to an invalid slot if
  /// there is none. The current node may then call pass_masked_gradient() with a `g` that includes `addend`.
  [[nodiscard]] const FusibleNorm* fusible_norm(SlotId& addend) const;
  void pass_masked_gradient(const MaskedGradient& gradient) { producer(0).masked = gradient; }
  /// Returns the MaskedGradient that pass_masked_gradient() gave to this node. If the node got none, `g` of the result
  /// is invalid.
  [[nodiscard]] const MaskedGradient& masked_gradient() const { return here().masked; }
  /// Returns the destination of a parameter's gradient. The next call() is recorded as a write of this gradient.
  /// GradientTarget::wanted() is false if the parameter is frozen.
  [[nodiscard]] GradientTarget parameter_gradient(const std::string& name);
  /// Returns the destinations of two parameters' gradients, for an op that either overwrites both or adds to both.
  /// Either both destinations are wanted or none. If only one parameter is frozen, the gradient of the frozen parameter
  /// goes to memory that nobody reads.
  [[nodiscard]] std::pair<GradientTarget, GradientTarget> parameter_gradients(const std::string& first,
                                                                              const std::string& second);

  // --- tangents (PlanOptions::jvp only; other plans ignore them)
  /// Registers `emit`, which appends the calls that compute the tangent of the node's output from the tangents of the
  /// node's inputs. These calls come after the backward calls, in the order of the layers. They may read everything
  /// that the node's backward calls read.
  void on_tangent(std::function<void(PlanBuilder&)> emit);
  /// Returns the slot of the i-th input's tangent, which has the shape of that input. No call may write into the slot.
  [[nodiscard]] SlotId input_tangent(int i = 0) const { return producer(i).tangent; }
  void set_tangent(SlotId slot) { here().tangent = slot; }  ///< `emit` of on_tangent() must call this function
  /// Returns a new slot for the tangent of the node's output, and calls set_tangent() with the slot.
  [[nodiscard]] SlotId new_tangent();

 private:
  /// Appends the calls of backward, from the gradient of the output to all other gradients.
  void plan_backward(SlotId gradient);
  /// Returns dL/d(input) after the backward calls of all layers are planned.
  [[nodiscard]] SlotId plan_input_gradient();
  void plan_vjp();  ///< appends the calls of Plan::vjp(): backward with constant parameters
  void plan_jvp();  ///< appends the calls of Plan::jvp()
  /// Restores, in its destructor, the context that the builder had before beside().
  struct Beside {
    PlanBuilder& builder;
    Context* own;
    ~Beside() { builder.context_ = own; }
  };
  struct NodeState {
    SlotId output;
    UnappliedNorm unapplied;  ///< if its coefficients are valid, the node's output is batch_norm_apply() of `output`
    PooledGradient pooled;    ///< replaces `gradients` if `pooled.dy` is valid
    SlotId sums;              ///< the slot passed to leave_sums(): sums per channel of `output`; invalid if none
    FusibleNorm fusible;      ///< if its `x` is valid, the node accepts a MaskedGradient
    MaskedGradient masked;    ///< its `g`, if valid, is the sum of all gradients of the output
    std::vector<SlotId> gradients;
    std::function<void(PlanBuilder&)> backward, tangents;
    SlotId tangent;  ///< tangent of the output
    int uses = 0;
    /// true: this node or a node before it has parameters that are not frozen, so the output needs a gradient.
    bool trains = false;
  };
  [[nodiscard]] NodeState& here() { return nodes_[static_cast<std::size_t>(current_)]; }
  [[nodiscard]] const NodeState& here() const { return nodes_[static_cast<std::size_t>(current_)]; }
  /// Returns the index of the node that makes the i-th input of the current node.
  [[nodiscard]] std::size_t producer_index(int i) const {
    return static_cast<std::size_t>(node().inputs[static_cast<std::size_t>(i)].index);
  }
  [[nodiscard]] NodeState& producer(int i) { return nodes_[producer_index(i)]; }
  [[nodiscard]] const NodeState& producer(int i) const { return nodes_[producer_index(i)]; }
  [[nodiscard]] const Node& producer_node(int i) const { return model_.nodes()[producer_index(i)]; }
  [[nodiscard]] SlotInfo& info_of(SlotId slot) { return contents_.slots[static_cast<std::size_t>(slot.index)]; }
  [[nodiscard]] const SlotInfo& info_of(SlotId slot) const {
    return contents_.slots[static_cast<std::size_t>(slot.index)];
  }
  /// Returns the only layer that reads the node's output, or nullptr if no layer or several layers read it. Sets
  /// `input` to the index of this output among the inputs of that layer.
  [[nodiscard]] const Layer* only_reader(int& input) const;
  [[nodiscard]] const Node& node() const { return model_.nodes()[static_cast<std::size_t>(current_)]; }
  template <class Plan>
  static std::shared_ptr<const Plan> shared(std::unique_ptr<Plan> plan) {
    return plan;
  }
  template <class Make>
  auto make_with_choice(const std::string& key, Make&& make) {
    const auto found = options_.choices.find(key);
    const bool given = found != options_.choices.end();
    const std::string& choice = given ? found->second : options_.default_choice;
    if (choice.empty() || (given && options_.choices_required)) {
      return make(choice);
    }
    try {
      return make(choice);
    } catch (const CudaError&) {
      throw;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error&) {  // the build lacks the provider, or the library cannot plan the choice
    }
    return make(std::string());
  }
  SlotId new_slot(SlotInfo info);
  SlotId parameter_slot(const std::string& name, SlotKind kind, DType dtype);
  void merge_pending();
  [[nodiscard]] bool shared_gradient(SlotId slot) const;
  /// Throws StateError if the node has several gradients (Layer::gradients_taken()) and its backward calls do not read
  /// all of these. The backward calls of the node begin at call number `first_call`.
  void require_gradients_read(std::size_t first_call) const;
  void add_gradients(SlotId a, SlotId b, SlotId out);

  Context* context_;
  const Model& model_;
  /// Parameters of the model, in the order in which their gradients become ready.
  std::vector<Model::Parameter> parameters_;
  std::vector<BufferSpec> buffers_;
  /// parameter_index_ maps the name of a parameter to its index in parameters_. buffer_index_ maps the name of a buffer
  /// to its index in buffers_.
  std::unordered_map<std::string, std::size_t> parameter_index_, buffer_index_;
  Mode mode_;
  std::int64_t batch_;
  const PlanOptions& options_;
  PlanContents contents_;
  std::vector<NodeState> nodes_;
  int current_ = 0;
  bool backward_phase_ = false;
  bool constants_;                   ///< true: no call computes the gradient of a parameter
  bool once_ = false;                ///< value of Call::once for the next call
  std::vector<int> pending_writes_;  ///< parameters whose gradients the next call writes
  struct Merge {
    SlotId from, into;
  };
  std::vector<Merge> pending_merges_;
  std::vector<SlotId> shared_gradients_;  ///< gradients that several nodes may share, so no call may write into them
  /// Number of writes of each parameter's gradient so far, plus 1 if PlanOptions::accumulate.
  std::vector<int> writes_so_far_;
};

}  // namespace lockstep::nn
