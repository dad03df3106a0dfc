#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// A parameter's place in the arenas.
struct ParameterInfo {
  ParameterSpec spec;
  std::int64_t offset = 0;  ///< first element: a multiple of kArenaStep, whatever the type
  std::int64_t numel = 0;   ///< stored elements, without the padding up to the next parameter
  int writes = 1;           ///< gradient writes per step, where it is trainable
};

/// Elements between which parameters begin: in 16 bits, too, they lie on multiples of kAlignment.
inline constexpr std::int64_t kArenaStep = static_cast<std::int64_t>(kAlignment / 2);

/// Bytes of the arenas of a ParameterSet. weights: 0 unless the set rounds().
struct ParameterArenaBytes {
  std::size_t values = 0;
  std::size_t gradients = 0;
  std::size_t weights = 0;
  std::size_t buffers = 0;
  std::size_t evaluation_buffers = 0;
};
[[nodiscard]] ParameterArenaBytes parameter_arena_bytes(const Model& model, DType dtype);

/// Memory that the host program owns and lends a ParameterSet for its arenas: of any type and shape, without gaps, on
/// the device of the context, kAlignment-aligned, of at least the bytes that parameter_arena_bytes() says. It outlives
/// the set. What it holds is overwritten: a new set is zero, whosever memory it is. Views that are not given stand for
/// memory that the set takes from its resource.
struct ParameterArenas {
  TensorView values{};
  TensorView gradients{};
  TensorView weights{};  ///< without use unless the set rounds()
  TensorView buffers{};
  TensorView evaluation_buffers{};
};

struct ParameterSetOptions {
  double weight_decay = 0;
  bool decay_all = true;             ///< false: biases and norm parameters are not decayed
  MemoryResource* memory = nullptr;  ///< where the arenas live; nullptr: the context's resource
  ParameterArenas lent{};            ///< arenas that live in the host program's memory instead
};

/// All parameters of a model as one flat arena, their gradients and optimizer states as arenas of the same layout, and
/// the layers' buffers. Order: that in which gradients become ready; padding is zero and stays zero; the layout does
/// not depend on the number of ranks, nor on the type. Every bucket, update, norm and checkpoint is a range of it.
///
/// Frozen parameters (Model::freezing()) lie behind all others: the arenas of gradients and states end in front of
/// them, and so do buckets, updates and norms.
///
/// For a plan in 16 bits all of this is f32, the values being the master weights (Micikevicius et al. 2018, "Mixed
/// Precision Training", section 3.1), and beside it lies one more arena: the values rounded to the plan's type, which
/// convolutions and products read. Who writes values() calls round_weights() afterwards; the optimizer writes both.
class ParameterSet {
 public:
  /// dtype: that of the plans, PlanOptions::dtype. Memory that is lent and does not fit: ShapeError that names the
  /// arena, the bytes or the address, and what is expected; two arenas that overlap likewise; DeviceError for another
  /// device.
  ParameterSet(Context& context, const Model& model, DType dtype, const ParameterSetOptions& options = {});

  /// Of values, gradients, states and buffers: accumulation_dtype() of the plans'.
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] DType weight_dtype() const { return weight_dtype_; }  ///< of the plans
  [[nodiscard]] bool rounds() const { return weight_dtype_ != dtype_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }  ///< arena elements, padding included
  [[nodiscard]] std::span<const ParameterInfo> parameters() const { return infos_; }
  /// Those that are not frozen: the first of parameters(), in the first trainable_numel() elements.
  [[nodiscard]] std::span<const ParameterInfo> trainable() const {
    return std::span(infos_).first(static_cast<std::size_t>(trainable_));
  }
  [[nodiscard]] std::int64_t trainable_numel() const { return trainable_numel_; }
  [[nodiscard]] int find(const std::string& name) const;  ///< index; UsageError when there is none

  [[nodiscard]] TensorView values() const;     ///< the arena, (numel)
  [[nodiscard]] TensorView gradients() const;  ///< (trainable_numel)
  /// gradients() and kArenaStep elements behind them, zero when made: the first holds the sum of the weights of
  /// samples where a step counts or weighs them (step/train_step.hpp). This is what is summed over ranks.
  [[nodiscard]] TensorView gradients_and_weight_sum() const;
  [[nodiscard]] TensorView weight_sum() const;  ///< that element, a scalar
  [[nodiscard]] TensorView weights() const;     ///< values() in the type of the plans: the same memory unless rounds()
  [[nodiscard]] TensorView value(int index) const;     ///< stored shape
  [[nodiscard]] TensorView gradient(int index) const;  ///< UsageError when the parameter is frozen
  [[nodiscard]] TensorView weight(int index) const;
  /// weights() = values(), rounded to nearest even; enqueued. Nothing unless rounds().
  void round_weights(Context& context) const;
  /// The logical tensor `dims` of a parameter as a strided view of an arena (values(), gradients(), a state).
  [[nodiscard]] TensorView logical(int index, const TensorView& arena) const;
  /// Copies a parameter's value to or from host memory of its logical shape, of any type and strides, and waits for the
  /// stream. UsageError when there is no such parameter, ShapeError for another shape, DeviceError for other memory.
  void read(Context& context, const std::string& name, const TensorView& out) const;
  void write(Context& context, const std::string& name, const TensorView& value);
  /// Segments of equal options for arena ops, padding included.
  [[nodiscard]] std::span<const ops::ArenaSegment> segments() const { return segments_; }
  /// The same with one segment a parameter; biases and norm parameters do not adapt (kernels/lars.hpp).
  [[nodiscard]] std::span<const ops::ArenaSegment> tensor_segments() const { return tensor_segments_; }

  /// An optimizer state arena like gradients(), zero when made. add_state() once per name (StateError otherwise).
  TensorView add_state(Context& context, const std::string& name);
  [[nodiscard]] std::vector<std::string> state_names() const;
  [[nodiscard]] TensorView state(const std::string& name) const;
  /// An optimizer's count, such as its updates: i64 (1) on the device, zero when made. Once per name likewise.
  TensorView add_counter(Context& context, const std::string& name);
  [[nodiscard]] std::vector<std::string> counter_names() const;
  [[nodiscard]] TensorView counter(const std::string& name) const;

  /// The loss scale, of dtype(), and the updates in a row that did not change it, i64; scalars on the device, `initial`
  /// and 0 when made. Once (StateError otherwise); without it the views are not given. A scale that is not dynamic
  /// stays as it is; checkpoints hold one that is.
  void add_loss_scale(Context& context, double initial, bool dynamic);
  [[nodiscard]] bool dynamic_loss_scale() const { return dynamic_loss_scale_; }
  [[nodiscard]] TensorView loss_scale() const;
  [[nodiscard]] TensorView loss_scale_good() const;

  /// Buffers that training updates: this rank's own running statistics.
  [[nodiscard]] std::span<const BufferSpec> buffers() const { return buffer_specs_; }
  [[nodiscard]] TensorView buffer_arena() const;
  [[nodiscard]] TensorView buffer(int index) const;  ///< stored shape
  [[nodiscard]] int find_buffer(const std::string& name) const;
  /// The buffers that evaluation, inference and checkpoints use: the average over ranks, written by whoever reduces.
  [[nodiscard]] TensorView evaluation_buffer_arena() const;
  [[nodiscard]] TensorView evaluation_buffer(int index) const;  ///< stored shape
  /// The logical tensor in a view of a buffer as it is stored.
  [[nodiscard]] TensorView logical_buffer(int index, const TensorView& stored) const;
  /// read() and write() of a buffer. Reading gives what evaluation uses; writing sets that and what training updates.
  void read_buffer(Context& context, const std::string& name, const TensorView& out) const;
  void write_buffer(Context& context, const std::string& name, const TensorView& value);

  /// All that a run keeps from step to step, in one list: what is broadcast, compared and saved.
  struct Persistent {
    enum class Kind : unsigned char {
      parameters,
      state,  ///< of the optimizer: an arena like values()
      counter,
      loss_scale,
      good_updates,  ///< loss_scale_good()
      statistics,    ///< buffer_arena()
      averaged_statistics
    };
    Kind kind = Kind::parameters;
    std::string name;      ///< "parameters", "momentum_buffer", "step", "loss scale", "averaged statistics", ...
    TensorView view;       ///< contiguous; some have no elements
    bool of_rank = false;  ///< differs from rank to rank
  };
  [[nodiscard]] std::vector<Persistent> persistent() const;

  /// Initial values from (seed, parameter name); buffers and loss scale to their initial values, states, counters and
  /// gradients to zero.
  void initialise(Context& context, std::uint64_t seed);
  [[nodiscard]] std::size_t bytes() const;  ///< of all arenas and counters

 private:
  struct State {
    std::string name;
    Buffer buffer;
  };
  TensorView add_to(std::vector<State>& states, Context& context, const std::string& name, DType dtype,
                    std::int64_t numel) const;
  [[nodiscard]] static std::vector<std::string> names_of(const std::vector<State>& states);
  [[nodiscard]] static const Buffer& buffer_of(const std::vector<State>& states, const std::string& name);

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
  Buffer evaluation_buffers_;
  std::vector<State> states_;
  std::vector<State> counters_;
  Buffer loss_scale_;  ///< the scale, and behind kScalar bytes the count; empty without
  double initial_loss_scale_ = 0;
  bool dynamic_loss_scale_ = false;
};

}  // namespace lockstep::nn
