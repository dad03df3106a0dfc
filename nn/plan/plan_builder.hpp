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

/// Where a layer writes a gradient: the slot, and whether to overwrite it or add to it.
struct GradientTarget {
  SlotId slot;
  ops::GradMode mode = ops::GradMode::ignore;
  [[nodiscard]] bool wanted() const { return mode != ops::GradMode::ignore; }
};

/// What a batch norm leaves whose output its reader computes on its way.
struct UnappliedNorm {
  SlotId coefficients, stats;
  std::string name;  ///< of the layer
};

/// A batch norm that can take its gradient after its ReLU's mask, with sums, from the convolution that reads its output
/// (ConvNorm in kernels/conv2d.hpp). With x2 its shortcut's norm gets the same gradient.
struct FusibleNorm {
  SlotId mask, x, coefficients;
  SlotId x2{}, coefficients2{};
};

/// That gradient, and sums (2, C), with x2 (3, C).
struct MaskedGradient {
  SlotId g, sums;
};

/// The gradient of a max pool's output beside the winners: what batch_norm_pool.hpp computes the norm's gradient from.
struct PooledGradient {
  SlotId dy, index;
  ops::PoolDesc desc;
};

/// The tools of Layer::plan(): it makes slots, appends calls, and finds the tensors of the node being planned. Plan's
/// constructor and layers use it; it lives only while a plan is made.
class PlanBuilder {
 public:
  PlanBuilder(Context& context, const Model& model, Mode mode, std::int64_t batch, const PlanOptions& options);

  /// Plans input, layers, loss and backward, and places every slot in the workspace. Once.
  [[nodiscard]] PlanContents build();

  [[nodiscard]] Context& context() { return *context_; }  ///< within beside() that one
  [[nodiscard]] Mode mode() const { return mode_; }
  [[nodiscard]] bool fuses() const {  ///< PlanOptions::fusions
    return options_.fusions == Fusions::on ||
           (options_.fusions == Fusions::automatic && context_->device().kind == DeviceKind::cuda);
  }
  [[nodiscard]] bool training() const { return mode_ == Mode::train; }
  [[nodiscard]] DType dtype() const { return options_.dtype; }
  [[nodiscard]] DType statistics_dtype() const { return ops::accumulation_dtype(options_.dtype); }
  [[nodiscard]] const PlanOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }

  // --- the node being planned
  /// The activation (batch, ...) of the i-th input.
  [[nodiscard]] SlotId input(int i = 0) const { return producer(i).output; }
  [[nodiscard]] const Shape& input_shape(int i = 0) const { return producer_node(i).shape; }  ///< of one sample
  [[nodiscard]] Shape batched(const Shape& sample) const;                                     ///< (batch, sample...)
  /// A parameter as the optimizer keeps it, in accumulation_dtype(dtype()): for biases and parameters of norms.
  [[nodiscard]] SlotId parameter(const std::string& name);
  /// A parameter in dtype(): for weights of convolutions and products, and for tables. Without 16 bits,
  /// parameter(name).
  [[nodiscard]] SlotId weight(const std::string& name);
  [[nodiscard]] SlotId buffer(const std::string& name);
  [[nodiscard]] SlotId state(StateField field);
  [[nodiscard]] SlotId loss_scale();  ///< ParameterSet::loss_scale()
  [[nodiscard]] SlotId weight_sum();  ///< ParameterSet::weight_sum()
  /// True when no other node uses the i-th input and its value is not needed after this forward call: the output
  /// may then overwrite it.
  [[nodiscard]] bool may_overwrite_input(int i = 0) const;
  void set_output(SlotId slot);  ///< must be called once by Layer::plan()
  /// True when the only reader of the node's output takes it as a tensor and coefficients (Layer::takes_norm()): then
  /// the node may call leave_norm_unapplied(), and its output is the tensor.
  [[nodiscard]] bool may_leave_norm_unapplied(bool relu) const;
  void leave_norm_unapplied(UnappliedNorm norm) { here().unapplied = std::move(norm); }
  /// What the node of the i-th input left; without coefficients when the input is its output.
  [[nodiscard]] const UnappliedNorm& unapplied_norm(int i) const { return producer(i).unapplied; }

  /// Where the only reader of `output`, the node's output, wants sums of its channels (Layer::sums_wanted_near()): the
  /// buffer to take deviations from. Then the node may call leave_sums() with (2, C).
  [[nodiscard]] SlotId sums_wanted_near(SlotId output);
  void leave_sums(SlotId sums) { here().sums = sums; }
  [[nodiscard]] SlotId input_sums() const { return producer(0).sums; }  ///< what the node of the input left; or invalid

  // --- slots
  [[nodiscard]] SlotId activation(const std::string& name, const Shape& shape);  ///< of the plan's dtype
  [[nodiscard]] SlotId statistics(const std::string& name, const Shape& shape);  ///< of statistics_dtype()
  [[nodiscard]] SlotId tensor(const std::string& name, const Shape& shape, DType dtype);
  [[nodiscard]] SlotId scratch(std::size_t bytes);  ///< u8, for one call; invalid SlotId for 0 bytes
  [[nodiscard]] SlotId alias(SlotId of, const std::string& name,
                             const Shape& shape);         ///< same memory; last use of `of`
  [[nodiscard]] TensorView prototype(SlotId slot) const;  ///< shape and dtype without memory

  // --- calls
  /// Appends a call. `reads` and `writes` must name every slot that run touches, and no slot in `reads` that it only
  /// overwrites. launches: see Call.
  void call(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
            std::function<void(Context&, const Frame&)> run, int launches = 1);
  /// The same for a call that must run once where a plan computes others again (PlanOptions::recompute): it
  /// communicates, counts, or does anything else beside writing `writes` from `reads`.
  void call_once(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
                 std::function<void(Context&, const Frame&)> run, int launches = 1);
  /// The same for a call that is a cooperative launch on a GPU (kernels/cuda/grid.hpp): a plan has such calls on one
  /// stream. StateError within beside(), where a second context is given.
  void call_together(const std::string& op, std::vector<SlotId> reads, std::vector<SlotId> writes, double flops,
                     std::function<void(Context&, const Frame&)> run);
  /// Appends an exchange with the ranks of PlanOptions::exchange, which is given: returns (ranks, elements of
  /// `own`), what every rank has in `own`, in rank order. StateError without one, and within beside(), where a second
  /// context is given.
  [[nodiscard]] SlotId all_gather(const std::string& op, SlotId own, const std::string& name);

  /// Runs plan(), which plans and appends calls that take long and whose results nothing in the plan needs: the
  /// gradients of weights. Where PlanOptions::beside gives a second context these may still run while the calls behind
  /// them do; what they read and write is kept apart. context(), and the one that the calls get, are then that one.
  template <class F>
  void beside(F&& plan) {
    const Beside scope{*this, std::exchange(context_, options_.beside != nullptr ? options_.beside : context_)};
    plan();
  }

  /// The last call reads `slot` only in rare cases, as of a batch that is not full: its bytes are not counted.
  void seldom_read(SlotId slot) { contents_.calls.back().bytes -= static_cast<double>(info_of(slot).bytes); }

  /// Appends the sum of dy, seen as `rows` (M, C), into the gradient of a bias; does nothing where that is not wanted.
  void reduce_rows(SlotId dy, const Shape& rows, const GradientTarget& dbias);
  /// Plans a library call (plan_conv2d, plan_matmul): make(choice) with the choice that the options hold for `key`, or
  /// with an empty one for the provider's first guess. Records the choice that was made.
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

  /// planned() for plan_matmul(), with the plan's tf32.
  [[nodiscard]] std::shared_ptr<const ops::MatmulPlan> matmul(const std::string& key, ops::MatmulDesc desc);

  // --- backward (train mode only; ignored otherwise)
  /// `emit` runs after all forward calls, in reverse order of the layers; within it the functions above refer to this
  /// node again.
  void on_backward(std::function<void(PlanBuilder&)> emit);
  /// Gradients of the node's output, at most Layer::gradients_taken() of them.
  [[nodiscard]] std::span<const SlotId> output_gradients() const { return here().gradients; }
  /// Where the gradient of the i-th input goes. wanted() is false for the model's input, and where all parameters
  /// before this layer are frozen. reuse: a gradient slot that this call reads for the last time; a new gradient that
  /// is overwritten takes its memory. can_accumulate = false: makes a separate slot, which is added to the others
  /// afterwards.
  [[nodiscard]] GradientTarget input_gradient(int i, SlotId reuse = {}, bool can_accumulate = true);
  /// True when input_gradient(i) is wanted and has a tensor of its own, to which nothing is added before the calls of
  /// another node.
  [[nodiscard]] bool first_input_gradient(int i) const;
  [[nodiscard]] bool wants_input_gradient(int i) const { return producer(i).trains; }
  /// Calls f() as if the node of the i-th input were being planned, whose backward this node appends with its own.
  template <class F>
  void as_input(int i, F&& f) {
    const int reader = std::exchange(current_, node().inputs[static_cast<std::size_t>(i)].index);
    f();
    current_ = reader;
  }
  /// Memory for a tensor that replaces dy, a gradient of the output, after its last use: dy's own memory, unless other
  /// calls still read it.
  [[nodiscard]] SlotId overwrite_gradient(SlotId dy, const std::string& name);
  /// Makes dy, a gradient of the output, the gradient of the i-th input. Nothing is copied: all inputs for which it is
  /// called share dy, and from then on no call writes into it.
  void pass_gradient(int i, SlotId dy);
  /// Hands a gradient to the norm of the input (unapplied_norm(0)), instead of its output's.
  void pass_pooled_gradient(const PooledGradient& gradient);
  /// What was handed to this node; without dy when nothing was.
  [[nodiscard]] const PooledGradient& pooled_gradient() const { return here().pooled; }
  /// In forward: the node's backward takes a MaskedGradient.
  void offer_norm(const FusibleNorm& norm) { here().fusible = norm; }
  /// The offer of the input's node, when this node's gradient is the only one that it still waits for, and one other at
  /// most has come (`addend`). Then the node may call pass_masked_gradient(), with all of them in g.
  [[nodiscard]] const FusibleNorm* fusible_norm(SlotId& addend) const;
  void pass_masked_gradient(const MaskedGradient& gradient) { producer(0).masked = gradient; }
  /// What was handed to this node; without g when nothing was.
  [[nodiscard]] const MaskedGradient& masked_gradient() const { return here().masked; }
  /// Where the gradient of a parameter goes; the next call() counts as a write of it. wanted() is false when the
  /// parameter is frozen.
  [[nodiscard]] GradientTarget parameter_gradient(const std::string& name);
  /// The gradients of two parameters that one op computes in one mode: both are wanted or none. When one of them is
  /// frozen, its gradient goes to memory that is not read.
  [[nodiscard]] std::pair<GradientTarget, GradientTarget> parameter_gradients(const std::string& first,
                                                                              const std::string& second);

 private:
  /// Puts the plan's own context back.
  struct Beside {
    PlanBuilder& builder;
    Context* own;
    ~Beside() { builder.context_ = own; }
  };
  struct NodeState {
    SlotId output;
    UnappliedNorm unapplied;  ///< with coefficients: the output is batch_norm_apply() of `output` and these
    PooledGradient pooled;    ///< with dy: the node has no gradients of its output
    SlotId sums;              ///< of `output`
    FusibleNorm fusible;      ///< with x: an offer
    MaskedGradient masked;    ///< with g: all gradients of its output
    std::vector<SlotId> gradients;
    std::function<void(PlanBuilder&)> backward;
    int uses = 0;
    bool trains = false;  ///< this node, or one before it, has parameters that are not frozen
  };
  [[nodiscard]] NodeState& here() { return nodes_[static_cast<std::size_t>(current_)]; }
  [[nodiscard]] const NodeState& here() const { return nodes_[static_cast<std::size_t>(current_)]; }
  /// Of the i-th input of the node.
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
  /// The layer that alone reads the node's output, and as which input; nullptr when there are others, or none.
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
    } catch (const Error&) {  // this build lacks the provider, or the library fails at this choice
    }
    return make(std::string());
  }
  SlotId new_slot(SlotInfo info);
  SlotId parameter_slot(const std::string& name, SlotKind kind, DType dtype);
  void merge_pending();
  [[nodiscard]] bool shared_gradient(SlotId slot) const;
  /// StateError when the node has several gradients (Layer::gradients_taken()) and its backward, the calls from
  /// `first_call` on, does not read all of them.
  void require_gradients_read(std::size_t first_call) const;
  void add_gradients(SlotId a, SlotId b, SlotId out);

  Context* context_;
  const Model& model_;
  std::vector<Model::Parameter> parameters_;  ///< the model's
  std::vector<BufferSpec> buffers_;
  std::unordered_map<std::string, std::size_t> parameter_index_, buffer_index_;  ///< into these, by name
  Mode mode_;
  std::int64_t batch_;
  const PlanOptions& options_;
  PlanContents contents_;
  std::vector<NodeState> nodes_;
  int current_ = 0;
  bool backward_phase_ = false;
  bool once_ = false;                ///< of the next call
  std::vector<int> pending_writes_;  ///< parameters whose gradient the next call writes
  struct Merge {
    SlotId from, into;
  };
  std::vector<Merge> pending_merges_;
  std::vector<SlotId> shared_gradients_;  ///< of several nodes: must not be written any more
  std::vector<int> writes_so_far_;        ///< per parameter; an accumulating plan begins with 1
};

}  // namespace lockstep::nn
