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

/// Kind of memory in which a slot lies. `weight` is a parameter in the type of the plan (ParameterSet::weight()),
/// `weight_sum` is ParameterSet::weight_sum(), and `state` is a field of the StepState.
enum class SlotKind : unsigned char { workspace, parameter, weight, gradient, buffer, state, loss_scale, weight_sum };

struct SlotInfo {
  std::string name{};
  SlotKind kind = SlotKind::workspace;
  DType dtype = DType::f32;
  Shape shape{};
  int source = -1;     ///< index of the parameter, buffer or StateField, for kinds other than workspace
  int alias_of = -1;   ///< slot whose memory this slot reuses; -1: none
  int first = -1;      ///< first call that touches the slot; -1: none
  int last = -1;       ///< last call that touches the slot, or that may run while a call on the side stream touches it
  bool saved = false;  ///< true: a forward call writes the slot, and a backward call reads it
  int again = -1;      ///< slot with the recomputed value, which backward calls use instead; -1: none
  std::size_t bytes = 0;
  std::size_t offset = 0;  ///< offset of the slot's first byte in the workspace
  std::size_t end = 0;     ///< offset in the workspace at which the slot's own or shared memory ends
};

/// The memory view of each slot. Each call of a plan gets a Frame, in which it finds its tensors.
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

/// A call of an op, as a plan lists it.
struct Call {
  std::string layer;  ///< name of the layer, like "layer1.0.conv1"
  std::string op;     ///< operation, pass and provider, like "conv2d forward onednn"
  bool backward = false;
  bool once = false;    ///< true: the call is never computed again in backward (PlanBuilder::call_once())
  bool beside = false;  ///< true: runs on the side stream and may overlap the following calls (PlanBuilder::beside())
  std::vector<SlotId> reads;
  std::vector<SlotId> writes;
  double flops = 0;
  double bytes = 0;      ///< bytes read and written, each tensor counted once
  double exchanged = 0;  ///< bytes that this rank sends to the other ranks (Exchange); 0: no communication
  /// Number of kernels on a GPU; a library call counts as one. In layers that ResNets lack, a lower bound.
  int launches = 1;
  std::vector<int> gradients;  ///< indices, in ready order, of the parameters whose gradients this call writes
  std::function<void(Context&, const Frame&)> run;
};

/// A planned library call and the key of the call in Choices.
struct LibraryPlan {
  std::string key;
  std::variant<std::shared_ptr<const ops::ConvPlan>, std::shared_ptr<const ops::MatmulPlan>> plan;
};

/// A wait of the plan's stream for call `call` on the side stream. The plan's stream waits before call `before`, or at
/// the end of the plan if `before` is the number of calls.
struct Join {
  int call = 0;
  int before = 0;
};

struct PlanContents {
  std::vector<SlotInfo> slots;
  std::vector<Call> calls;
  std::vector<Join> joins;  ///< one Join per call on the side stream, in order of the calls; `before` never decreases
  int backward_begin = 0;   ///< index of the first backward call
  int vjp_begin = 0;        ///< index of the first call of Plan::vjp(); without these calls, that of the next section
  int jvp_begin = 0;        ///< index of the first call of Plan::jvp(); without these calls, the number of calls
  SlotId output;
  SlotId input_gradient;  ///< dL/d(input), (batch, stored input shape); invalid without PlanOptions::input_gradient
  SlotId vjp_result;      ///< result of Plan::vjp(), of the shape of input_gradient; invalid without PlanOptions::vjp
  SlotId input_tangent, output_tangent;  ///< input and result of Plan::jvp(); invalid without PlanOptions::jvp
  Choices choices;                       ///< choices with which the library calls were planned
  std::vector<LibraryPlan> library_plans;
  Recomputed recomputed;
  std::size_t workspace_bytes = 0;
  bool kept_apart = false;         ///< true: PlanOptions::kept_apart is in effect
  std::size_t kept_bytes = 0;      ///< bytes at the begin of the workspace of PlanOptions::kept_apart, otherwise 0
  std::size_t unshared_bytes = 0;  ///< bytes that all slots would take without reuse of memory
  bool guarded = false;            ///< true: PlanOptions::guard_bands is in effect
  [[nodiscard]] std::size_t guard_bytes() const { return guarded ? kGuardBandBytes : 0; }
};

/// Recorder of a plan's run, which gets one span per call. Plan::name_calls() makes a CallRecord.
struct CallRecord {
  SpanRecorder* recorder = nullptr;
  int first_name = 0;  ///< index of call 0's name in the recorder; the names of the next calls follow in order
};

/// A model planned for one context, mode and batch size: a static list of op calls over slots. Forward, backward, the
/// per-layer table and graph capture use the same list. Several plans may share one ParameterSet and one workspace.
/// Planning allocates; run() neither allocates nor waits for the stream.
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
  /// Returns the bytes that a set of kept activations takes, if they lie apart (PlanOptions::kept_apart); otherwise 0.
  [[nodiscard]] std::size_t kept_bytes() const { return contents_.kept_bytes; }
  [[nodiscard]] std::size_t unshared_bytes() const { return contents_.unshared_bytes; }  ///< bytes without reuse
  [[nodiscard]] const Recomputed& recomputed() const { return contents_.recomputed; }
  [[nodiscard]] double flops() const;
  [[nodiscard]] double bytes() const;                 ///< sum of Call::bytes over all calls
  [[nodiscard]] int launches() const;                 ///< sum of Call::launches over all calls
  [[nodiscard]] int top_k() const { return top_k_; }  ///< PlanOptions::top_k in evaluation, otherwise 0

  /// Resolves all slots to memory. `workspace` has at least workspace_bytes(), kAlignment-aligned, on the device of the
  /// parameters. Workspace, parameters and state must stay valid until the next bind() or the end of the plan. Throws
  /// ShapeError if they belong to another model or batch size. Throws StateError if the plan scales its loss but the
  /// parameters hold no loss scale, and if they hold one but the plan does not scale its loss.
  void bind(ParameterSet& parameters, StepState& state, const Buffer& workspace);
  /// Takes a workspace in the host program's memory, of any type and shape. Each run overwrites the workspace. Throws
  /// ShapeError if the workspace has too few bytes (the error text names both numbers), has gaps, or is not
  /// kAlignment-aligned. Throws DeviceError if it is not on the parameters' device.
  void bind(ParameterSet& parameters, StepState& state, const TensorView& workspace);
  /// Binds a plan that writes the gradients of parameters to `gradients`, an arena like ParameterSet::gradients(),
  /// instead of the parameters' own.
  void bind(ParameterSet& parameters, StepState& state, const Buffer& workspace, const TensorView& gradients);
  /// Binds a plan that only reads the parameters. Throws StateError for a plan that trains.
  void bind(const ParameterSet& parameters, StepState& state, const Buffer& workspace);
  void bind(const ParameterSet& parameters, StepState& state, const TensorView& workspace);
  /// Makes later runs read and write `state`, beginning with its sample `first`. The layout of `state` must be that of
  /// the state given to bind().
  void use(const StepState& state, std::int64_t first = 0);

  /// Enqueues all calls in order. For each gradient that a backward call has written, calls written(parameter) with the
  /// parameter's index in ready order. written() is called when the backward call is enqueued, or, for a call on the
  /// side stream, when the wait for it is enqueued. `written` may be empty. Work that is enqueued on the stream of
  /// `context` after run() comes after all calls.
  void run(Context& context, const std::function<void(int parameter)>& written = {}, const CallRecord& record = {});
  /// These functions run the two halves of run(): the forward calls and the backward calls. Work that runs between them
  /// must not touch this plan's workspace. One backward() with the same kept activations must follow each forward().
  void forward(Context& context, const CallRecord& record = {});
  void backward(Context& context, const std::function<void(int parameter)>& written = {},
                const CallRecord& record = {});
  /// Enqueues J^T u with the Jacobian J = d(output)/d(input) at the kept activations of a forward(), and u in
  /// StateField::targets. The result is vjp_result(). Gradients of parameters and kept activations do not change, so a
  /// backward() may follow. StateError without PlanOptions::vjp.
  void vjp(Context& context);
  /// Enqueues J t, with t in input_tangent(). The result is output_tangent(). Otherwise as vjp(), with
  /// PlanOptions::jvp.
  void jvp(Context& context);
  /// Adds another set of kept activations, in a workspace with the properties that bind() requires. If the kept
  /// activations lie apart (PlanOptions::kept_apart), kept_bytes() suffice. With two sets, a forward() on one set may
  /// run between forward() and backward() on the other. Returns the number of the new set; bind() makes set 0 and
  /// removes all other sets. The new set has the parameters of bind(), and the state of the set that is in use now.
  /// use() changes only the state of the set in use. Throws StateError before bind().
  int add_kept(const TensorView& workspace);
  /// Makes later runs use set `set` of kept activations. Throws UsageError if there is no set of this number.
  void keep_in(int set);
  /// Adds the names of all calls to a recorder. Returns the record to pass to run().
  [[nodiscard]] CallRecord name_calls(SpanRecorder& recorder) const;
  /// Enqueues call number `index`; later work on the stream of `context` waits for this call. Do not use this function
  /// while a run is being enqueued.
  void run_call(Context& context, int index);

  /// Returns the model's output, whose shape is (batch, output shape of the model). Throws StateError before bind().
  [[nodiscard]] const TensorView& output() const;
  /// Returns dL/d(input) after backward(), of shape (batch, stored input shape). Throws StateError before bind(), and
  /// without PlanOptions::input_gradient.
  [[nodiscard]] const TensorView& input_gradient() const;
  /// These functions return the views that vjp() and jvp() read and write: (batch, stored input shape) and (batch,
  /// output shape). Later calls of the plan overwrite them. StateError as in vjp() and jvp(), and before bind().
  [[nodiscard]] const TensorView& vjp_result() const;
  [[nodiscard]] const TensorView& input_tangent() const;
  [[nodiscard]] const TensorView& output_tangent() const;
  /// Returns the view of `slot` that the forward calls use.
  [[nodiscard]] const TensorView& view(SlotId slot) const { return frame_[slot]; }

 private:
  /// Events by which the side stream waits for the plan's stream before a call, and the plan's stream waits for the end
  /// of that call.
  struct Meeting {
    explicit Meeting(Device device) : begin(device), end(device) {}
    Event begin, end;
  };
  void run_one(Context& context, const Call& call, const CallRecord& record, int index);
  void run_beside(Context& context, const Call& call, Meeting& meeting, const CallRecord& record, int index);
  /// Called after an error. Makes the context's stream wait for the first `begun` calls on the side stream, which may
  /// still run.
  void wait_for_beside(Context& context, std::size_t begun) noexcept;
  /// Enqueues work on the guard bands that follow the slots that `call` writes: checks the bands if `check` is true,
  /// otherwise writes them.
  void guard(Context& context, const Call& call, bool check);
  void bind_slots(const ParameterSet& parameters, const StepState& state, const TensorView& workspace,
                  const TensorView& gradients = {});
  void bind_again(const Frame& frame, Frame& again) const;
  /// Enqueues calls [begin, end), and after them the context's stream's wait for those on the side stream.
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
  Frame again_;  ///< frame of backward calls if some slots are computed again; otherwise empty
  Context* beside_;
  /// A set of kept activations: the workspace that holds them, and the frames with the views into this workspace.
  struct Kept {
    Frame frame, again;
    std::byte* kept;
  };
  std::vector<Kept> kept_;         ///< all sets; the entry of the set in use is not up to date
  std::size_t set_ = 0;            ///< number of the set in use
  Device device_ = Device::cpu();  ///< device of the workspaces
  std::byte* workspace_ = nullptr;
  std::byte* in_use_ = nullptr;    ///< memory of the set in use: a workspace, or the kept_bytes() of one
  std::vector<Meeting> meetings_;  ///< events of the calls on the side stream, one Meeting for each Join
  bool bound_ = false;
};

/// Formats the per-layer table of --dry-run: calls with shapes, flops, bytes and launches, then their sums and the
/// memory.
[[nodiscard]] std::string describe(const Plan& plan);

}  // namespace lockstep::nn
