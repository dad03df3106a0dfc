#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/plan/plan_options.hpp>
#include <lockstep/nn/plan/recompute.hpp>
#include <lockstep/runtime/memory/guard_band.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {
class ConvPlan;
class MatmulPlan;
}  // namespace lockstep::ops

namespace lockstep::nn {

class ParameterSet;

/// Purpose of a plan. `train` augments images, and computes loss and gradients. `evaluate` uses running statistics, and
/// computes loss and accuracy. `infer` computes only the output.
enum class Mode : unsigned char { train, evaluate, infer };
[[nodiscard]] std::string_view name_of(Mode mode);

/// Identifies a tensor of a plan by its index in Plan::slots().
struct SlotId {
  int index = -1;
  [[nodiscard]] bool valid() const { return index >= 0; }
  friend bool operator==(const SlotId&, const SlotId&) = default;
};

/// Kind of memory that a slot uses. `weight` is a parameter in the dtype of the plan (ParameterSet::weight()),
/// `weight_sum` is ParameterSet::weight_sum(), and `state` is a field of the StepState.
enum class SlotKind : unsigned char { workspace, parameter, weight, gradient, buffer, state, loss_scale, weight_sum };

struct SlotInfo {
  std::string name{};
  SlotKind kind = SlotKind::workspace;
  DType dtype = DType::f32;
  Shape shape{};
  int source = -1;    ///< index of the parameter, buffer or StateField; -1 for kind workspace
  int alias_of = -1;  ///< index of the slot whose memory this slot reuses; -1: none
  int first = -1;     ///< index of the first call that touches the slot; -1: none
  /// Index of the last call that touches the slot. plan_joins() increases the index for slots of calls on the side
  /// stream.
  int last = -1;
  bool saved = false;  ///< true: the slot lives from a forward call to a backward call
  int again = -1;      ///< index of the slot that backward calls use instead, with the recomputed value; -1: none
  std::size_t bytes = 0;
  std::size_t offset = 0;  ///< offset of the slot's first byte in the workspace
  /// Offset in the workspace at which the slot's memory ends. For an alias, the end of the memory that it shares.
  std::size_t end = 0;
};

/// Maps each slot to its memory. A plan passes the Frame to each call, and the call looks up its tensors in the Frame.
class Frame {
 public:
  [[nodiscard]] const TensorView& operator[](SlotId slot) const {
    return slot.valid() ? views_[static_cast<std::size_t>(slot.index)] : none_;
  }

 private:
  friend class Plan;
  std::vector<TensorView> views_;
  TensorView none_;
};

/// One op of a plan, with its slots and cost.
struct Call {
  std::string layer;  ///< name of the layer, for example "layer1.0.conv1"
  std::string op;     ///< operation, pass and provider, for example "conv2d forward onednn"
  bool backward = false;
  bool once = false;    ///< true: the call is never computed again in backward (PlanBuilder::call_once())
  bool beside = false;  ///< true: runs on the side stream and may overlap the following calls (PlanBuilder::beside())
  std::vector<SlotId> reads;
  std::vector<SlotId> writes;
  double flops = 0;
  double bytes = 0;      ///< bytes read and written, each tensor counted once
  double exchanged = 0;  ///< bytes that this rank sends to other ranks in a collective operation
  /// Number of kernel launches on a GPU. A library call counts as one launch. For layers that ResNets do not use, the
  /// number is a lower bound.
  int launches = 1;
  std::vector<int> gradients;  ///< parameters whose gradients this call writes, as indices in ParameterSet::trainable()
  std::function<void(Context&, const Frame&)> run;
};

/// A planned library call and its key in Choices.
struct LibraryPlan {
  std::string key;
  std::variant<std::shared_ptr<const ops::ConvPlan>, std::shared_ptr<const ops::MatmulPlan>> plan;
};

/// A wait of the plan's stream for call number `call`, which runs on the side stream. The plan's stream waits before
/// call number `before`, or at the end of the plan if `before` is the number of calls.
struct Join {
  int call = 0;
  int before = 0;
};

struct PlanContents {
  std::vector<SlotInfo> slots;
  std::vector<Call> calls;
  /// One Join per call on the side stream, in order of calls; `before` never decreases from one Join to the next.
  std::vector<Join> joins;
  int backward_begin = 0;  ///< index of the first backward call
  int vjp_begin = 0;       ///< index of the first call of Plan::vjp(); equal to jvp_begin if there are no such calls
  int jvp_begin = 0;       ///< index of the first call of Plan::jvp(); equal to the number of calls if there are none
  SlotId output;
  SlotId input_gradient;  ///< dL/d(input), (batch, stored input shape); invalid without PlanOptions::input_gradient
  SlotId vjp_result;      ///< result of Plan::vjp(), of the shape of input_gradient; invalid without PlanOptions::vjp
  SlotId input_tangent, output_tangent;  ///< input and result of Plan::jvp(); invalid without PlanOptions::jvp
  Choices choices;                       ///< choices with which the library calls were planned
  std::vector<LibraryPlan> library_plans;
  Recomputed recomputed;
  std::size_t workspace_bytes = 0;
  bool kept_apart = false;
  /// Size of the part of the workspace for slots that live from forward to backward; 0 if PlanOptions::kept_apart is
  /// false.
  std::size_t kept_bytes = 0;
  std::size_t unshared_bytes = 0;  ///< size of the workspace if no slots shared memory
  bool guarded = false;  ///< true: each slot of the workspace is followed by a guard band (PlanOptions::guard_bands)
  [[nodiscard]] std::size_t guard_bytes() const { return guarded ? kGuardBandBytes : 0; }
};

/// Recorder of a plan's run, which records one time span per call. Plan::name_calls() returns a CallRecord.
struct CallRecord {
  SpanRecorder* recorder = nullptr;
  int first_name = 0;  ///< index in the recorder of the name of call 0; the names of all other calls follow in order
};

/// A model planned for one context, mode and batch size: a static list of op calls over slots. Forward, backward, the
/// per-layer table and CUDA graph capture all use this list. Several plans may share one ParameterSet and one
/// workspace. The constructor allocates memory. run() neither allocates nor waits for the stream.
class Plan {
 public:
  Plan(Context& context, const Model& model, Mode mode, std::int64_t batch, const PlanOptions& options = {});

  [[nodiscard]] Mode mode() const { return mode_; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] const StepLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<SlotInfo>& slots() const { return contents_.slots; }
  [[nodiscard]] const std::vector<Call>& calls() const { return contents_.calls; }
  [[nodiscard]] const std::vector<Join>& joins() const { return contents_.joins; }
  [[nodiscard]] const Choices& choices() const { return contents_.choices; }
  [[nodiscard]] const std::vector<LibraryPlan>& library_plans() const { return contents_.library_plans; }
  [[nodiscard]] int backward_begin() const { return contents_.backward_begin; }
  [[nodiscard]] std::size_t workspace_bytes() const { return contents_.workspace_bytes; }
  /// Returns the bytes that one set of kept activations needs with PlanOptions::kept_apart; otherwise 0.
  [[nodiscard]] std::size_t kept_bytes() const { return contents_.kept_bytes; }
  [[nodiscard]] std::size_t unshared_bytes() const { return contents_.unshared_bytes; }  ///< bytes without reuse
  [[nodiscard]] const Recomputed& recomputed() const { return contents_.recomputed; }
  [[nodiscard]] double flops() const;
  [[nodiscard]] double bytes() const;                 ///< sum of Call::bytes over all calls
  [[nodiscard]] int launches() const;                 ///< sum of Call::launches over all calls
  [[nodiscard]] int top_k() const { return top_k_; }  ///< PlanOptions::top_k in evaluation, 0 in other modes

  /// Connects all slots to memory. `workspace` must have at least workspace_bytes() bytes, aligned to kAlignment, on
  /// the device of the parameters. Workspace, parameters and state must stay valid until the next bind() or the end of
  /// the plan. Throws ShapeError if parameters or state belong to another model or batch size. For a training plan,
  /// throws StateError unless PlanOptions::scaled_loss is true exactly when the parameters have a loss scale.
  void bind(ParameterSet& parameters, StepState& state, const Buffer& workspace);
  /// Like bind() above, with a workspace that the calling program has allocated, of any type and shape. Each run
  /// overwrites the workspace. Throws ShapeError if the workspace has too few bytes, is not contiguous, or is not
  /// aligned to kAlignment. Throws DeviceError if the workspace is not on the parameters' device.
  void bind(ParameterSet& parameters, StepState& state, const TensorView& workspace);
  /// Like bind() above, but the plan writes the gradients of parameters to the arena `gradients` instead of
  /// ParameterSet::gradients(). Both arenas must have the same shape, dtype and device.
  void bind(ParameterSet& parameters, StepState& state, const Buffer& workspace, const TensorView& gradients);
  /// Binds a plan that only reads the parameters. Throws StateError for a plan of Mode::train.
  void bind(const ParameterSet& parameters, StepState& state, const Buffer& workspace);
  void bind(const ParameterSet& parameters, StepState& state, const TensorView& workspace);
  /// Makes later runs use the StepState `state`, from its sample number `first` on, in place of the StepState given to
  /// bind(). Both StepStates must have the same layout.
  void use(const StepState& state, std::int64_t first = 0);

  /// Enqueues all calls in order. For each parameter gradient that a call writes, calls written(parameter), unless
  /// `written` is empty. `parameter` is the parameter's index in ParameterSet::trainable(). written() is called when
  /// the call has been enqueued. For a call on the side stream, written() is called when the plan's stream has enqueued
  /// the wait for this call. Work that is enqueued later on the stream of `context` runs after all calls.
  void run(Context& context, const std::function<void(int parameter)>& written = {}, const CallRecord& record = {});
  /// forward() and backward() run the two halves of run(): the forward calls and the backward calls. Work that runs
  /// between the halves must not touch this plan's workspace. One backward() must follow each forward(), on the same
  /// set of kept activations.
  void forward(Context& context, const CallRecord& record = {});
  void backward(Context& context, const std::function<void(int parameter)>& written = {},
                const CallRecord& record = {});
  /// Enqueues J^T u with the Jacobian J = d(output)/d(input) at the kept activations of a forward(), and u in
  /// StateField::targets. The result is vjp_result(). Gradients of parameters and kept activations do not change, so a
  /// backward() may follow. Throws StateError without PlanOptions::vjp.
  void vjp(Context& context);
  /// Enqueues J t, with t in input_tangent(). The result is output_tangent(). Throws StateError without
  /// PlanOptions::jvp. In all other respects, jvp() is like vjp().
  void jvp(Context& context);
  /// Adds a set of kept activations in another workspace, for which the requirements of bind() apply. With
  /// PlanOptions::kept_apart, this workspace needs only kept_bytes() bytes. With two sets, the forward() of one set may
  /// run between forward() and backward() of the other set. Returns the number of the new set. bind() makes set 0 and
  /// removes all other sets. The new set uses the parameters of bind(), and the StepState of the set that is now in
  /// use. use() changes only the StepState of the set that is in use. Throws StateError before bind().
  int add_kept(const TensorView& workspace);
  /// Makes later runs use set `set` of kept activations. Throws UsageError if there is no set of this number.
  void keep_in(int set);
  /// Adds the names of all calls to a recorder. Returns the CallRecord to pass to run().
  [[nodiscard]] CallRecord name_calls(SpanRecorder& recorder) const;
  /// Enqueues only call number `index`, and makes the stream of `context` wait for it. Must not be called during run().
  void run_call(Context& context, int index);

  /// Returns the model's output, of shape (batch, output shape of the model). Throws StateError before bind().
  [[nodiscard]] const TensorView& output() const;
  /// Returns dL/d(input) after backward(), of shape (batch, stored input shape). Throws StateError before bind(), and
  /// without PlanOptions::input_gradient.
  [[nodiscard]] const TensorView& input_gradient() const;
  /// These functions return the views that vjp() and jvp() read and write: (batch, stored input shape) and (batch,
  /// output shape). Later calls of the plan overwrite these views. The functions throw StateError as vjp() and jvp()
  /// do, and before bind().
  [[nodiscard]] const TensorView& vjp_result() const;
  [[nodiscard]] const TensorView& input_tangent() const;
  [[nodiscard]] const TensorView& output_tangent() const;
  /// Returns the view of `slot` that the forward calls use.
  [[nodiscard]] const TensorView& view(SlotId slot) const { return frame_[slot]; }

 private:
  /// Events around a call on the side stream. The side stream waits for `begin` before the call, and the plan's stream
  /// waits for `end` after the call.
  struct Meeting {
    explicit Meeting(Device device) : begin(device), end(device) {}
    Event begin, end;
  };
  void run_one(Context& context, const Call& call, const CallRecord& record, int index);
  void run_beside(Context& context, const Call& call, Meeting& meeting, const CallRecord& record, int index);
  /// Makes the context's stream wait for the first `begun` calls on the side stream. Used after an error, when these
  /// calls may still run.
  void wait_for_beside(Context& context, std::size_t begun) noexcept;
  /// Enqueues work on the guard bands after the slots that `call` writes. The work checks the bands if `check` is true,
  /// and writes the bands otherwise.
  void guard(Context& context, const Call& call, bool check);
  void bind_slots(const ParameterSet& parameters, const StepState& state, const TensorView& workspace,
                  const TensorView& gradients = {});
  void bind_again(const Frame& frame, Frame& again) const;
  /// Enqueues calls [begin, end). At the end, the context's stream waits for the calls among them that run on the side
  /// stream.
  void run_calls(Context& context, int begin, int end, const std::function<void(int)>& written,
                 const CallRecord& record);
  void bind_state(std::size_t slot, const StepState& state, std::int64_t first);
  [[nodiscard]] const TensorView& bound(SlotId slot, const char* what) const;
  Mode mode_;
  bool inference_pass_;
  std::int64_t batch_;
  int top_k_;
  StepLayout layout_;
  bool scaled_loss_;
  PlanContents contents_;
  Frame frame_;
  Frame again_;  ///< frame for backward calls if some slots are computed again; otherwise empty
  Context* beside_;
  /// A set of kept activations: its frames and the memory of its workspace.
  struct Kept {
    Frame frame, again;
    std::byte* kept;
  };
  /// All sets of kept activations. frame_, again_ and in_use_ belong to the set in use, whose entry in kept_ is stale.
  std::vector<Kept> kept_;
  std::size_t set_ = 0;
  Device device_ = Device::cpu();
  std::byte* workspace_ = nullptr;
  std::byte* in_use_ = nullptr;    ///< memory of the set in use: a full workspace, or kept_bytes() bytes
  std::vector<Meeting> meetings_;  ///< events of the calls on the side stream, one Meeting for each Join
  bool bound_ = false;
};

/// Formats the per-layer table of --dry-run: each call with shapes, flops, bytes and launches, then the sums and the
/// memory sizes.
[[nodiscard]] std::string describe(const Plan& plan);

}  // namespace lockstep::nn
