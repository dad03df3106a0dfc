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

/// train: augmented images, loss, backward. evaluate: running statistics, loss and accuracy. infer: output only.
enum class Mode : unsigned char { train, evaluate, infer };
[[nodiscard]] std::string_view name_of(Mode mode);

/// A tensor of a plan: an index into Plan::slots().
struct SlotId {
  int index = -1;
  [[nodiscard]] bool valid() const { return index >= 0; }
  friend bool operator==(const SlotId&, const SlotId&) = default;
};

/// weight: a parameter in the type of the plan, ParameterSet::weight(). weight_sum: ParameterSet::weight_sum().
enum class SlotKind : unsigned char { workspace, parameter, weight, gradient, buffer, state, loss_scale, weight_sum };

struct SlotInfo {
  std::string name{};
  SlotKind kind = SlotKind::workspace;
  DType dtype = DType::f32;
  Shape shape{};
  int source = -1;     ///< parameter, buffer or StateField number for the kinds that are not workspace
  int alias_of = -1;   ///< the slot whose memory this one reuses, or -1
  int first = -1;      ///< the first call that touches it
  int last = -1;       ///< the last call that touches it, or during which a call beside may still do so
  bool saved = false;  ///< written by a forward call and read by a backward call
  int again = -1;      ///< the slot that backward calls have in its place, computed again; or -1
  std::size_t bytes = 0;
  std::size_t offset = 0;  ///< in the workspace
  std::size_t end = 0;     ///< in the workspace: of the memory that the slot has, of its own or of another slot
};

/// The views that a call uses, by slot.
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

/// One op call of a plan.
struct Call {
  std::string layer;  ///< "layer1.0.conv1"
  std::string op;     ///< "conv2d forward onednn"
  bool backward = false;
  bool once = false;    ///< PlanBuilder::call_once()
  bool beside = false;  ///< PlanBuilder::beside(): may still run while the calls behind it do
  std::vector<SlotId> reads;
  std::vector<SlotId> writes;
  double flops = 0;
  double bytes = 0;      ///< read and written, each tensor counted once
  double exchanged = 0;  ///< bytes that this rank gives to the others (Exchange); 0: the call is this rank's alone
  /// Kernels on a GPU, where a call of a library is one. A lower bound for layers that residual networks have not.
  int launches = 1;
  std::vector<int> gradients;  ///< parameters (ready order) of which this call writes a gradient
  std::function<void(Context&, const Frame&)> run;
};

/// One planned call of a library and its key in Choices.
struct LibraryPlan {
  std::string key;
  std::variant<std::shared_ptr<const ops::ConvPlan>, std::shared_ptr<const ops::MatmulPlan>> plan;
};

/// The stream of a plan waits before call `before` (or, if that is their number, at the end) for call `call`, which
/// runs beside.
struct Join {
  int call = 0;
  int before = 0;
};

struct PlanContents {
  std::vector<SlotInfo> slots;
  std::vector<Call> calls;
  std::vector<Join> joins;  ///< of the calls that run beside, in their order; none waits for less than the one before
  int backward_begin = 0;   ///< index of the first backward call
  SlotId output;
  Choices choices;  ///< as planned
  std::vector<LibraryPlan> library_plans;
  Recomputed recomputed;
  std::size_t workspace_bytes = 0;
  std::size_t unshared_bytes = 0;  ///< of all slots, without reuse
  bool guarded = false;            ///< PlanOptions::guard_bands
  [[nodiscard]] std::size_t guard_bytes() const { return guarded ? kGuardBandBytes : 0; }
};

/// Where a plan's run is recorded, a span a call; Plan::name_calls() makes it.
struct CallRecord {
  SpanRecorder* recorder = nullptr;
  int first_name = 0;  ///< of call 0; the others follow
};

/// A model planned for one context, mode and batch size: a static list of op calls over slots. Forward, backward, the
/// per-layer table and graph capture walk the same list. Several plans share one ParameterSet and one workspace.
/// Planning allocates; run() does not, and does not wait for the stream.
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
  [[nodiscard]] std::size_t unshared_bytes() const { return contents_.unshared_bytes; }  ///< without lifetime reuse
  [[nodiscard]] const Recomputed& recomputed() const { return contents_.recomputed; }
  [[nodiscard]] double flops() const;
  [[nodiscard]] double bytes() const;                 ///< of all calls
  [[nodiscard]] int launches() const;                 ///< of all calls
  [[nodiscard]] int top_k() const { return top_k_; }  ///< PlanOptions::top_k in evaluation, else 0

  /// Resolves all slots to memory. workspace: at least workspace_bytes(), kAlignment-aligned, on the device of the
  /// parameters. Workspace, parameters and state must outlive the plan or the next bind(). ShapeError when they belong
  /// to another model or batch size; StateError when a training plan scales its loss and the parameters hold no loss
  /// scale, or the reverse.
  void bind(ParameterSet& parameters, StepState& state, const Buffer& workspace);
  /// The same with a workspace in the host program's memory, of any type and shape. Each run overwrites it. ShapeError
  /// when it has too few bytes (the text names both numbers), has gaps, or is not kAlignment-aligned; DeviceError when
  /// it is not on the parameters' device.
  void bind(ParameterSet& parameters, StepState& state, const TensorView& workspace);
  /// The same for a plan that only reads the parameters. StateError for a plan that trains.
  void bind(const ParameterSet& parameters, StepState& state, const Buffer& workspace);
  void bind(const ParameterSet& parameters, StepState& state, const TensorView& workspace);
  /// From the next run on, reads and writes another state, like the one of bind(), from sample `first` on.
  void use(const StepState& state, std::int64_t first = 0);

  /// Enqueues all calls in order. After each backward call that writes gradients, or after the wait for it where it
  /// runs beside, calls written(parameter) for each of them (index in ready order); `written` may be empty. At the end
  /// the stream of `context` has waited for all calls.
  void run(Context& context, const std::function<void(int parameter)>& written = {}, const CallRecord& record = {});
  /// The two parts of run(), apart: whatever else runs between them leaves this plan's workspace alone. A forward() is
  /// followed by one backward() with the same kept activations.
  void forward(Context& context, const CallRecord& record = {});
  void backward(Context& context, const std::function<void(int parameter)>& written = {},
                const CallRecord& record = {});
  /// Another set of kept activations, in a workspace of its own, as in bind(): a forward() of one set may run between
  /// forward() and backward() of another. Returns its number; bind() makes set 0 and forgets the others. Parameters are
  /// those of bind(); the state is that of the set in use now, until use(), which is for the set in use alone.
  /// StateError before bind().
  int add_kept(const TensorView& workspace);
  /// From the next call on, the plan runs on this set. UsageError for a number that is none.
  void keep_in(int set);
  /// Gives the calls names in a recorder.
  [[nodiscard]] CallRecord name_calls(SpanRecorder& recorder) const;
  /// Enqueues one call; the stream of `context` waits for it. Not while a run is being enqueued.
  void run_call(Context& context, int index);

  /// (batch, output shape): the model's output. StateError before bind().
  [[nodiscard]] const TensorView& output() const;
  [[nodiscard]] const TensorView& view(SlotId slot) const { return frame_[slot]; }  ///< in forward

 private:
  /// What two streams tell each other about a call beside.
  struct Meeting {
    explicit Meeting(Device device) : begin(device), end(device) {}
    Event begin, end;
  };
  void run_one(Context& context, const Call& call, const CallRecord& record, int index);
  void run_beside(Context& context, const Call& call, Meeting& meeting, const CallRecord& record, int index);
  /// After an error: nothing that the caller enqueues next may overtake what still runs beside.
  void wait_for_beside(Context& context, std::size_t begun) noexcept;
  /// The guard bands of what `call` writes: written (before it), or checked (after it), on the context's stream.
  void guard(Context& context, const Call& call, bool check);
  void bind_slots(const ParameterSet& parameters, const StepState& state, const TensorView& workspace);
  void bind_again(const Frame& frame, Frame& again) const;
  /// Calls [begin, end) and, at the end, the stream's wait for all of them.
  void run_calls(Context& context, int begin, int end, const std::function<void(int)>& written,
                 const CallRecord& record);
  void bind_state(std::size_t slot, const StepState& state, std::int64_t first);
  Mode mode_;
  std::int64_t batch_;
  int top_k_;
  StepLayout layout_;
  bool scaled_loss_;
  PlanContents contents_;
  Frame frame_;
  Frame again_;  ///< of backward calls, where some slots are computed again; else empty
  Context* beside_;
  /// Where the plan's slots lie: frames and the workspace they are in.
  struct Kept {
    Frame frame, again;
    std::byte* workspace;
  };
  std::vector<Kept> kept_;  ///< all sets but the one in use, whose entry is not current
  std::size_t set_ = 0;
  Device device_ = Device::cpu();  ///< of the workspaces
  std::byte* workspace_ = nullptr;
  std::vector<Meeting> meetings_;  ///< by Join
  bool bound_ = false;
};

/// The per-layer table of --dry-run: calls, shapes, flops, bytes, lifetimes, and the memory they add up to.
[[nodiscard]] std::string describe(const Plan& plan);

}  // namespace lockstep::nn
