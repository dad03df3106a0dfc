#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/shards.hpp>
#include <lockstep/kernels/arena.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_groups.hpp>
#include <lockstep/nn/model/state_registry.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// A parameter and its position in the arenas.
struct ParameterInfo {
  ParameterSpec spec;
  std::int64_t offset = 0;  ///< index of the first element in the arena, a multiple of kArenaStep for every type
  std::int64_t numel = 0;   ///< number of stored elements, without the gap after the parameter
  int writes = 1;           ///< number of gradient writes per step, if the parameter is trainable
  InitialValue beginning{};
};

/// Alignment in elements: in the arena of the values, each parameter begins at a multiple of this number. If
/// comm::Shards divides a range of the arena over the ranks, each rank's share also begins at such a multiple.
inline constexpr std::int64_t kArenaStep = comm::kShardStep;

/// Bytes of the arenas of a ParameterSet. `weights` is 0 if ParameterSet::rounds() is false.
struct ParameterArenaBytes {
  std::size_t values = 0;
  std::size_t gradients = 0;
  std::size_t weights = 0;
  std::size_t buffers = 0;
  std::size_t evaluation_buffers = 0;
};
[[nodiscard]] ParameterArenaBytes parameter_arena_bytes(const Model& model, DType dtype);

/// Memory that the host program lends for the arenas of a ParameterSet. A view may have any type and shape, but no
/// gaps. The memory must be on the context's device, be aligned to kAlignment, have at least the bytes of
/// parameter_arena_bytes(), and outlive the set. A new set fills the memory with zeros. For a view that is not given,
/// the set allocates memory itself.
struct ParameterArenas {
  TensorView values{};
  TensorView gradients{};
  TensorView weights{};  ///< arena of weights(); not used if rounds() is false
  TensorView buffers{};
  TensorView evaluation_buffers{};
  /// Counter of ParameterSet::version(). Sets that use the same memory must share it (ParameterSet::arenas()). Null:
  /// the set makes a new counter.
  std::shared_ptr<std::uint64_t> version{};
};

struct ParameterSetOptions {
  double weight_decay = 0;
  bool decay_all = true;             ///< false: biases and norm parameters have no weight decay
  ParameterGroups groups{};          ///< weight decay by role, which overrides decay_all, and learning rates by name
  MemoryResource* memory = nullptr;  ///< resource of the arenas; nullptr: the context's resource
  ParameterArenas lent{};            ///< arenas in the host program's memory, used instead of `memory`
  /// Number of rows of statistics(): one for each virtual rank of this rank, at least 1.
  std::int64_t statistics_rows = 1;
};

/// Holds all parameters of a model in one flat arena, in the order in which backward completes their gradients.
/// Gradients and optimizer states are in arenas with the same layout. The layers' buffers are in an arena of their own.
/// Padding is always zero. The layout depends neither on the number of ranks nor on the type.
///
/// Frozen parameters (Model::freezing()) come after all others. The arenas of gradients and states end before the
/// frozen parameters, so buckets, updates and norms do not include them.
///
/// For a plan in 16 bits all these arenas are f32, and values() are the master weights (Micikevicius et al. 2018,
/// "Mixed Precision Training", section 3.1). A further arena, weights(), holds the values rounded to the plan's type.
/// Convolutions and products read weights(). A caller that writes values() must call round_weights(). The optimizer
/// writes both arenas.
class ParameterSet {
 public:
  /// `dtype` is the type of the plans, PlanOptions::dtype. Throws ShapeError if lent memory is too small or not
  /// aligned, or if two arenas overlap. The error text names the arena, the bytes or the address, and the expected
  /// value. Throws DeviceError for memory of another device.
  ParameterSet(Context& context, const Model& model, DType dtype, const ParameterSetOptions& options = {});

  /// Returns the type of values, gradients, states and buffers, which is accumulation_dtype() of the plans' type.
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] DType weight_dtype() const { return weight_dtype_; }  ///< type of the plans
  [[nodiscard]] bool rounds() const { return weight_dtype_ != dtype_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }  ///< number of arena elements, padding included
  [[nodiscard]] std::span<const ParameterInfo> parameters() const { return infos_; }
  /// Returns the parameters that are not frozen. These are the first of parameters(), and lie in the first
  /// trainable_numel() elements of the arena.
  [[nodiscard]] std::span<const ParameterInfo> trainable() const {
    return std::span(infos_).first(static_cast<std::size_t>(trainable_));
  }
  [[nodiscard]] std::int64_t trainable_numel() const { return trainable_numel_; }
  [[nodiscard]] int find(const std::string& name) const;  ///< index of `name`; throws UsageError if there is none

  [[nodiscard]] TensorView values() const;     ///< arena of all values, (numel)
  [[nodiscard]] TensorView gradients() const;  ///< arena of all gradients, (trainable_numel)
  /// Returns gradients() followed by kArenaStep elements, which are zero at first. If a step counts or weighs samples
  /// (step/train_step.hpp), the first of these elements holds the sum of the samples' weights. The reducer sums all
  /// elements of the view over the ranks.
  [[nodiscard]] TensorView gradients_and_weight_sum() const;
  [[nodiscard]] TensorView weight_sum() const;  ///< sum of samples' weights, a scalar in gradients_and_weight_sum()
  /// Returns the arena of the values in the plans' type. If rounds() is false, this arena is values() itself.
  [[nodiscard]] TensorView weights() const;
  [[nodiscard]] TensorView value(int index) const;     ///< view of a parameter in its stored shape
  [[nodiscard]] TensorView gradient(int index) const;  ///< throws UsageError if the parameter is frozen
  /// Returns gradient(index) as a view of `arena`, another arena like gradients().
  [[nodiscard]] TensorView gradient_in(int index, const TensorView& arena) const;
  [[nodiscard]] TensorView weight(int index) const;
  /// Enqueues a kernel that writes values(), rounded to nearest (ties to even), to weights(). Does nothing if rounds()
  /// is false.
  void round_weights(Context& context) const;
  /// Returns a number that increases whenever values() may have changed. initialise(), write(), round_weights(),
  /// loading a file and Optimizer::update() increase the number. Code that writes values() or lent memory in any other
  /// way must call changed(). After an increase, Inference packs its weights again, and a Tape refuses the backward of
  /// passes from before.
  [[nodiscard]] std::uint64_t version() const { return *version_; }
  void changed() const { ++*version_; }
  /// Returns the arenas of this set. If the caller lends them to another set (ParameterSetOptions::lent), the two sets
  /// share memory and version().
  [[nodiscard]] ParameterArenas arenas() const;
  /// Returns a parameter with its logical axes `dims`, as a strided view of `arena` (values(), gradients() or a state).
  [[nodiscard]] TensorView logical(int index, const TensorView& arena) const;
  /// read() copies the value of parameter `name` to host memory, and write() copies the value from host memory. The
  /// memory must have the shape ParameterSpec::shape or ParameterSpec::dims. It may have any type and strides. Both
  /// functions wait for the stream. They throw UsageError if there is no such parameter, ShapeError for another shape,
  /// and DeviceError for device memory.
  void read(Context& context, const std::string& name, const TensorView& out) const;
  void write(Context& context, const std::string& name, const TensorView& value);
  /// Returns the segments of the arena for kernels over arenas. A segment covers consecutive parameters with equal
  /// options, padding included.
  [[nodiscard]] std::span<const ops::ArenaSegment> segments() const { return segments_; }
  /// Returns one segment of the arena per parameter, for kernels over arenas. Segments of biases and norm parameters
  /// have no trust ratio (ops::ArenaSegment::adapts).
  [[nodiscard]] std::span<const ops::ArenaSegment> tensor_segments() const { return tensor_segments_; }

  /// Divides the optimizer states over the ranks. Each of `ranges` is divided into equal shards, one per rank, and this
  /// rank keeps the states of its own shards. Every rank also keeps the states of the elements at the end of a range
  /// that are too few to be divided. Throws ShapeError unless the ranges are consecutive and end at trainable_numel().
  /// Throws StateError after add_state().
  void shard_states(std::vector<comm::Shards> ranges, int rank, int ranks);
  /// Returns the ranges of the arena that shard_states() has divided. If the span is empty, this rank has the states of
  /// all parameters.
  [[nodiscard]] std::span<const comm::Shards> state_shards() const { return state_shards_; }
  [[nodiscard]] int shard() const { return shard_; }              ///< index of this rank's shard in each range
  [[nodiscard]] int shard_ranks() const { return shard_ranks_; }  ///< 1 unless the states are divided
  /// Returns the elements of the state `state` for elements [begin, end) of the arena. If states are divided, throws
  /// ShapeError unless [begin, end) lies in this rank's part of one range, or in the undivided elements at the end of
  /// one range.
  [[nodiscard]] TensorView state_range(const TensorView& state, std::int64_t begin, std::int64_t end) const;
  /// Adds an optimizer state, which is zero at first: calls add() with Sharing::shard.
  TensorView add_state(Context& context, const std::string& name);
  [[nodiscard]] std::vector<std::string> state_names() const;
  [[nodiscard]] TensorView state(const std::string& name) const;
  /// Adds a count of the optimizer, such as the number of updates: an i64 (1) on the device, zero at first. Throws
  /// StateError if the name is taken.
  TensorView add_counter(Context& context, const std::string& name);

  /// Names of two scalars on the device: the loss scale (nn/optim/loss_scale.hpp), of dtype(), and the i64 number of
  /// consecutive updates without a change of the scale. Without a loss scale, both views have no memory.
  static constexpr const char* kLossScale = "loss scale";
  static constexpr const char* kGoodUpdates = "good updates";
  [[nodiscard]] TensorView loss_scale() const { return states_.view(kLossScale); }
  [[nodiscard]] TensorView loss_scale_good() const { return states_.view(kGoodUpdates); }

  /// Returns the ranges of the arena for which this rank has optimizer states: the whole arena if states are not
  /// divided, otherwise this rank's shards and the undivided elements.
  [[nodiscard]] std::vector<ops::ArenaPiece> state_pieces() const;
  /// Returns the buffers that training updates: this rank's own running statistics.
  [[nodiscard]] std::span<const BufferSpec> buffers() const { return buffer_specs_; }
  [[nodiscard]] TensorView buffer_arena() const;
  [[nodiscard]] TensorView buffer(int index) const;  ///< view of a buffer in its stored shape
  /// Returns the running statistics of this rank's virtual ranks (TrainStepOptions::virtual_ranks), one row for each:
  /// (rows, elements). Before a virtual rank's samples are computed, its row is copied to buffer_arena(). If there is
  /// only one row, the result is buffer_arena() itself.
  [[nodiscard]] TensorView statistics() const;
  [[nodiscard]] std::int64_t statistics_rows() const { return statistics_rows_; }
  /// take_statistics() enqueues the copy of row `row` of statistics() to buffer_arena(). keep_statistics() enqueues the
  /// copy back to the row. Both functions do nothing if there is only one row.
  void take_statistics(Context& context, std::int64_t row) const;
  void keep_statistics(Context& context, std::int64_t row) const;
  /// Enqueues a copy of buffer_arena() to every row of statistics().
  void spread_statistics(Context& context) const;
  [[nodiscard]] int find_buffer(const std::string& name) const;
  /// Returns the arena of the buffers for evaluation, inference and checkpoints. These buffers are averages over the
  /// ranks. The code that computes the averages writes this arena.
  [[nodiscard]] TensorView evaluation_buffer_arena() const;
  [[nodiscard]] TensorView evaluation_buffer(int index) const;  ///< view of a buffer in its stored shape
  /// Returns buffer `index` in its stored shape, as a view of `arena`, which has the layout of buffer_arena().
  [[nodiscard]] TensorView buffer_in(int index, const TensorView& arena) const;
  /// Returns the logical part, without padding, of `stored`, the stored view of buffer `index`.
  [[nodiscard]] TensorView logical_buffer(int index, const TensorView& stored) const;
  /// read_buffer() and write_buffer() do for a buffer what read() and write() do for a parameter. read_buffer() gives
  /// the value for evaluation. write_buffer() sets both the value for evaluation and the value that training updates.
  void read_buffer(Context& context, const std::string& name, const TensorView& out) const;
  void write_buffer(Context& context, const std::string& name, const TensorView& value);

  /// Returns all states that a run keeps from step to step: parameters, statistics, the states of the optimizer, of the
  /// sum of gradients and of the moving average, and the program's own states.
  [[nodiscard]] const StateRegistry& states() const { return states_; }
  /// Adds a state, whose memory comes from the set's resource. state.view gives only type and shape. With
  /// Sharing::shard the state is an arena like gradients(). If states are divided, the state has only this rank's
  /// elements of that arena, one after the other. Throws StateError if the name is taken.
  TensorView add(Context& context, State state);
  /// Adds a state that the program defines, on the device. The state is broadcast, compared, saved, loaded and divided
  /// like all other states. All ranks must register the same states, before any state is broadcast, saved or loaded.
  /// Throws StateError if another state, or a tensor in the files, has the name. Throws UsageError if the type or the
  /// shape is invalid.
  TensorView register_state(Context& context, const StateSpec& spec);

  /// Sets parameters to initial values, which depend on (seed, parameter name) or come from
  /// Model::with_initial_value(), buffers to their initial values, and gradients to zero. Sets all other states with
  /// states().initialise() and states().follow().
  void initialise(Context& context, std::uint64_t seed);
  [[nodiscard]] std::size_t bytes() const;        ///< bytes of all arenas and states
  [[nodiscard]] std::size_t state_bytes() const;  ///< bytes of the optimizer's states on this rank

 private:
  DType dtype_;
  DType weight_dtype_;
  Device device_;
  MemoryResource* memory_;
  std::vector<ParameterInfo> infos_;
  std::vector<BufferSpec> buffer_specs_;
  std::vector<std::int64_t> buffer_offsets_;
  std::vector<ops::ArenaSegment> segments_;
  std::vector<ops::ArenaSegment> tensor_segments_;
  std::int64_t numel_ = 0;
  std::int64_t trainable_numel_ = 0;
  int trainable_ = 0;  ///< number of parameters that are not frozen
  std::int64_t buffer_numel_ = 0;
  Buffer values_;
  Buffer gradients_;
  Buffer weights_;  ///< empty if rounds() is false
  Buffer buffers_;
  std::int64_t statistics_rows_;
  Buffer statistics_;  ///< empty if statistics() has one row
  Buffer evaluation_buffers_;
  [[nodiscard]] std::int64_t state_numel() const;
  std::shared_ptr<std::uint64_t> version_;  ///< counter of version(); shared with the sets over the same memory
  std::vector<comm::Shards> state_shards_;
  int shard_ = 0;
  int shard_ranks_ = 1;
  StateRegistry states_;
};

}  // namespace lockstep::nn
