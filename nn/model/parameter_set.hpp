#pragma once

#include <cstdint>
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

/// A parameter's place in the arenas.
struct ParameterInfo {
  ParameterSpec spec;
  std::int64_t offset = 0;  ///< first element: a multiple of kArenaStep for every type
  std::int64_t numel = 0;   ///< stored elements, without the padding up to the next parameter
  int writes = 1;           ///< gradient writes per step, if trainable
  InitialValue beginning{};
};

/// Parameters begin at multiples of this many elements, as parts of divided ranges do.
inline constexpr std::int64_t kArenaStep = comm::kShardStep;

/// Bytes of the arenas of a ParameterSet. weights is 0 unless the set rounds().
struct ParameterArenaBytes {
  std::size_t values = 0;
  std::size_t gradients = 0;
  std::size_t weights = 0;
  std::size_t buffers = 0;
  std::size_t evaluation_buffers = 0;
};
[[nodiscard]] ParameterArenaBytes parameter_arena_bytes(const Model& model, DType dtype);

/// Memory of the host program for the arenas of a ParameterSet: of any type and shape, without gaps, on the context's
/// device, aligned to kAlignment, with at least the bytes of parameter_arena_bytes(). It must outlive the set. Its
/// content is overwritten: a new set is zero in lent memory too. For a view that is not given, the set allocates memory
/// from its resource.
struct ParameterArenas {
  TensorView values{};
  TensorView gradients{};
  TensorView weights{};  ///< not used unless the set rounds()
  TensorView buffers{};
  TensorView evaluation_buffers{};
};

struct ParameterSetOptions {
  double weight_decay = 0;
  bool decay_all = true;             ///< false: biases and norm parameters are not decayed
  ParameterGroups groups{};          ///< decay by role and rates by name, before decay_all
  MemoryResource* memory = nullptr;  ///< resource of the arenas; nullptr: the context's
  ParameterArenas lent{};            ///< arenas in the host program's memory instead
  std::int64_t statistics_rows = 1;  ///< statistics(): more than 1 take memory beside buffer_arena()
};

/// All parameters of a model in one flat arena, their gradients and optimizer states in arenas of the same layout, and
/// the layers' buffers. Parameters are in the order in which their gradients become ready. Padding is zero and stays
/// zero. The layout depends neither on the number of ranks nor on the type. Every bucket, update, norm and checkpoint
/// is a range of it.
///
/// Frozen parameters (Model::freezing()) come after all others. The arenas of gradients and states end before them, and
/// so do buckets, updates and norms.
///
/// For a plan in 16 bits all of this is f32, and values() are the master weights (Micikevicius et al. 2018, "Mixed
/// Precision Training", section 3.1). One more arena holds the values rounded to the plan's type, which convolutions
/// and products read. After writing values() call round_weights(); the optimizer writes both.
class ParameterSet {
 public:
  /// dtype: the type of the plans, PlanOptions::dtype. ShapeError when lent memory does not fit (the text names the
  /// arena, the bytes or the address, and what is expected) or when two arenas overlap; DeviceError for another device.
  ParameterSet(Context& context, const Model& model, DType dtype, const ParameterSetOptions& options = {});

  /// The type of values, gradients, states and buffers: accumulation_dtype() of the plans' type.
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] DType weight_dtype() const { return weight_dtype_; }  ///< of the plans
  [[nodiscard]] bool rounds() const { return weight_dtype_ != dtype_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }  ///< arena elements, padding included
  [[nodiscard]] std::span<const ParameterInfo> parameters() const { return infos_; }
  /// The parameters that are not frozen: the first of parameters(), in the first trainable_numel() elements.
  [[nodiscard]] std::span<const ParameterInfo> trainable() const {
    return std::span(infos_).first(static_cast<std::size_t>(trainable_));
  }
  [[nodiscard]] std::int64_t trainable_numel() const { return trainable_numel_; }
  [[nodiscard]] int find(const std::string& name) const;  ///< index; UsageError when there is none

  [[nodiscard]] TensorView values() const;     ///< the arena, (numel)
  [[nodiscard]] TensorView gradients() const;  ///< (trainable_numel)
  /// gradients() followed by kArenaStep elements, zero when made. The first of these holds the sum of the weights of
  /// samples when a step counts or weighs them (step/train_step.hpp). This whole view is summed over ranks.
  [[nodiscard]] TensorView gradients_and_weight_sum() const;
  [[nodiscard]] TensorView weight_sum() const;  ///< that element, a scalar
  [[nodiscard]] TensorView weights() const;     ///< values() in the type of the plans: the same memory unless rounds()
  [[nodiscard]] TensorView value(int index) const;     ///< stored shape
  [[nodiscard]] TensorView gradient(int index) const;  ///< UsageError when the parameter is frozen
  [[nodiscard]] TensorView weight(int index) const;
  /// weights() = values(), rounded to nearest even; enqueued. Does nothing unless rounds().
  void round_weights(Context& context) const;
  /// The logical tensor `dims` of a parameter, as a strided view of an arena (values(), gradients(), a state).
  [[nodiscard]] TensorView logical(int index, const TensorView& arena) const;
  /// Copies a parameter's value to or from host memory of its logical shape, of any type and strides, and waits for the
  /// stream. UsageError when there is no such parameter, ShapeError for another shape, DeviceError for other memory.
  void read(Context& context, const std::string& name, const TensorView& out) const;
  void write(Context& context, const std::string& name, const TensorView& value);
  /// Segments of equal options for arena ops, padding included.
  [[nodiscard]] std::span<const ops::ArenaSegment> segments() const { return segments_; }
  /// The same with one segment per parameter; biases and norm parameters do not adapt (kernels/lars.hpp).
  [[nodiscard]] std::span<const ops::ArenaSegment> tensor_segments() const { return tensor_segments_; }

  /// Divides the optimizer states over ranks: of each range of the arena this rank keeps its part and the rest. The
  /// ranges are consecutive and end at trainable_numel() (ShapeError). StateError after add_state().
  void shard_states(std::vector<comm::Shards> ranges, int rank, int ranks);
  /// Empty when this rank has the states of all parameters.
  [[nodiscard]] std::span<const comm::Shards> state_shards() const { return state_shards_; }
  [[nodiscard]] int shard() const { return shard_; }              ///< the part that is this rank's
  [[nodiscard]] int shard_ranks() const { return shard_ranks_; }  ///< 1 unless the states are divided
  /// The elements of a state() that belong to elements [begin, end) of the arena. With divided states [begin, end) is
  /// in this rank's part, or in the rest, of one range (ShapeError).
  [[nodiscard]] TensorView state_range(const TensorView& state, std::int64_t begin, std::int64_t end) const;
  /// An optimizer state, zero when made: add() with Sharing::shard.
  TensorView add_state(Context& context, const std::string& name);
  [[nodiscard]] std::vector<std::string> state_names() const;
  [[nodiscard]] TensorView state(const std::string& name) const;
  /// A count of the optimizer, such as its updates: i64 (1) on the device, zero when made. Once per name (StateError).
  TensorView add_counter(Context& context, const std::string& name);

  /// The loss scale (nn/optim/loss_scale.hpp), of dtype(), and the number of consecutive updates that did not change
  /// it, i64: scalars on the device; not given without one.
  static constexpr const char* kLossScale = "loss scale";
  static constexpr const char* kGoodUpdates = "good updates";
  [[nodiscard]] TensorView loss_scale() const { return states_.view(kLossScale); }
  [[nodiscard]] TensorView loss_scale_good() const { return states_.view(kGoodUpdates); }

  /// The parts of the arena of which this rank has the states: all of it, or those of its share.
  [[nodiscard]] std::vector<ops::ArenaPiece> state_pieces() const;
  /// Buffers that training updates: this rank's own running statistics.
  [[nodiscard]] std::span<const BufferSpec> buffers() const { return buffer_specs_; }
  [[nodiscard]] TensorView buffer_arena() const;
  [[nodiscard]] TensorView buffer(int index) const;  ///< stored shape
  /// (rows, elements): the statistics that this rank keeps, one row for each of its virtual ranks
  /// (TrainStepOptions::virtual_ranks), which takes its turn in buffer_arena(). One row is buffer_arena() itself.
  [[nodiscard]] TensorView statistics() const;
  [[nodiscard]] std::int64_t statistics_rows() const { return statistics_rows_; }
  /// buffer_arena() = row `row` of statistics(), and the reverse; enqueued. Nothing to do with one row.
  void take_statistics(Context& context, std::int64_t row) const;
  void keep_statistics(Context& context, std::int64_t row) const;
  /// Every row of statistics() = buffer_arena(); enqueued.
  void spread_statistics(Context& context) const;
  [[nodiscard]] int find_buffer(const std::string& name) const;
  /// The buffers of evaluation, inference and checkpoints: averages over ranks, written by the code that averages.
  [[nodiscard]] TensorView evaluation_buffer_arena() const;
  [[nodiscard]] TensorView evaluation_buffer(int index) const;  ///< stored shape
  /// The same in an arena of that layout.
  [[nodiscard]] TensorView buffer_in(int index, const TensorView& arena) const;
  /// The logical tensor in the stored view of a buffer.
  [[nodiscard]] TensorView logical_buffer(int index, const TensorView& stored) const;
  /// read() and write() for a buffer. Reading returns the value for evaluation; writing sets that value and the one
  /// that training updates.
  void read_buffer(Context& context, const std::string& name, const TensorView& out) const;
  void write_buffer(Context& context, const std::string& name, const TensorView& value);

  /// Everything that a run keeps from step to step, in one list: parameters, statistics, what an optimizer, a sum of
  /// gradients and a moving average add, and states of the program's own.
  [[nodiscard]] const StateRegistry& states() const { return states_; }
  /// Adds a state in memory of the set's resource; its view gives type and shape. With Sharing::shard it is an arena
  /// like gradients(), or of divided states this rank's elements one after the other. StateError when the name is
  /// taken.
  TensorView add(Context& context, State state);
  /// Adds a state of the program's own, on the device: it is broadcast, compared, saved, loaded and divided like all
  /// others. On all ranks alike, before a state is broadcast, saved or loaded. StateError when its name is that of
  /// another state or of a tensor in the files; UsageError for a type or a shape that cannot be.
  TensorView register_state(Context& context, const StateSpec& spec);

  /// Sets initial values from (seed, parameter name) or as Model::with_initial_value() gave them, buffers to their
  /// initial values, gradients to zero, and all other states as states().initialise() and follow() say.
  void initialise(Context& context, std::uint64_t seed);
  [[nodiscard]] std::size_t bytes() const;        ///< of all arenas and states
  [[nodiscard]] std::size_t state_bytes() const;  ///< of the optimizer's states on this rank

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
  int trainable_ = 0;  ///< parameters
  std::int64_t buffer_numel_ = 0;
  Buffer values_;
  Buffer gradients_;
  Buffer weights_;  ///< empty unless rounds()
  Buffer buffers_;
  std::int64_t statistics_rows_;
  Buffer statistics_;  ///< empty with one row
  Buffer evaluation_buffers_;
  [[nodiscard]] std::int64_t state_numel() const;
  std::vector<comm::Shards> state_shards_;
  int shard_ = 0;
  int shard_ranks_ = 1;
  StateRegistry states_;
};

}  // namespace lockstep::nn
