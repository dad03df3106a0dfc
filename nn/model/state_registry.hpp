#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Relation between the values that a state has on different ranks.
enum class Sharing : unsigned char {
  /// The state is equal on all ranks. A broadcast sends the state, and ranks compare their values.
  same,
  /// The state differs between ranks. A broadcast gives all ranks the root's value. A file has all ranks' values in
  /// rank order. A run on another number of ranks starts from the initial value or the mean.
  of_rank,
  /// The state differs between ranks, but only its sum over the ranks has a meaning. A broadcast leaves the state
  /// unchanged on every rank. A file has the values of all ranks. In a run on another number of ranks, each rank gets
  /// an equal part of the sum.
  sum_of_ranks,
  /// The state is divided like the gradients. With ParameterSet::shard_states(), each rank has its own elements of the
  /// state. Otherwise the state is treated like `same`. A file has the whole state.
  shard
};

/// Number and shape of the tensors that a file has for a state.
enum class StateLayout : unsigned char {
  tensor,      ///< the file has one tensor, f64 or i64; a scalar has shape (1)
  parameters,  ///< the state is an arena like values() or gradients(); the file has one tensor per parameter
  buffers      ///< the state is an arena like buffer_arena(); the file has one tensor per buffer
};

/// Names the file in a saved folder that holds a state (nn/step/state_file.hpp).
enum class StateFile : unsigned char {
  model,      ///< states that evaluation and inference read
  optimizer,  ///< all other states
  /// States of a moving average that evaluation reads, except those that differ between ranks, which are in the
  /// optimizer's file. If a folder has no file for the average, these states are set from the parameters.
  average
};

/// Action of loading if a file lacks a state. In all cases, a missing state with Sharing::sum_of_ranks and
/// StateLayout::parameters becomes 0.
enum class Missing : unsigned char {
  refused,     ///< loading throws DataError
  kept,        ///< loading leaves the state unchanged
  kept_unlike  ///< loading leaves the state unchanged, also if the tensor in the file has another shape or type
};

/// Range of values that a state may have in a file. Loading a value outside of the range throws DataError.
enum class Numbers : unsigned char { any, counts, scale };

/// A tensor that a run keeps from step to step, with the rules by which it is broadcast, compared, saved, loaded and
/// divided.
struct State {
  std::string name;  ///< name in comparisons and errors
  TensorView view;   ///< contiguous memory, which may have no elements
  Sharing sharing = Sharing::same;
  StateLayout layout = StateLayout::tensor;
  StateFile file = StateFile::optimizer;
  /// With StateLayout::tensor: name of the tensor in the file, or empty if the state is not saved. With any other
  /// layout: suffix of the tensors' names in the file, which are the parameters' names plus this suffix.
  std::string saved_as{};
  Missing missing = Missing::refused;
  std::string beside{};  ///< tensor name; if given, Missing::refused applies only to files that have this tensor
  Numbers numbers = Numbers::any;
  std::string mean{};  ///< for Sharing::of_rank, name of the state that holds the mean over the ranks
  double initial = 0;
  std::function<void(Context&, const TensorView& state)> follow{};  ///< sets the state from the parameters
  /// True if the state is an arena in the layout of the parameters that is equal on all ranks or divided between ranks.
  [[nodiscard]] bool in_arena() const {
    return layout == StateLayout::parameters && (sharing == Sharing::same || sharing == Sharing::shard);
  }
};

/// Describes a state that a program adds to a run (ParameterSet::register_state()).
struct StateSpec {
  std::string name;  ///< name of the state, in the run and in the file
  Shape shape{};  ///< shape of the state; not used with Sharing::shard, where the state is an arena like the gradients
  Sharing sharing = Sharing::same;
  DType dtype = DType::f32;  ///< f32, f64, or i64 with Sharing::same; not used with Sharing::shard
  double initial = 0;
  bool optional = false;  ///< true: a file may lack the state, which then keeps its value
};

/// List of all states of a run.
class StateRegistry {
 public:
  /// Adds a state whose memory the caller owns. Throws StateError when the name is empty or taken.
  void add(State state);
  /// Adds a state whose memory the registry allocates and fills with State::initial. Type, shape and device are those
  /// of state.view.
  TensorView make(Context& context, MemoryResource& memory, State state);
  [[nodiscard]] std::span<const State> all() const { return states_; }
  [[nodiscard]] const State* find(std::string_view name) const;  ///< returns nullptr if no state has the name
  [[nodiscard]] TensorView view(std::string_view name) const;    ///< returns an empty view if no state has the name
  [[nodiscard]] const State& of(std::string_view name) const;    ///< throws StateError if no state has the name
  [[nodiscard]] std::size_t bytes() const;                       ///< number of bytes that make() has allocated
  [[nodiscard]] std::string text() const;  ///< returns a text that must be equal on all ranks: one line per state
  /// Enqueues the initial values of the states that make() has allocated.
  void initialise(Context& context) const;
  /// Calls State::follow of each state that has this function. Call follow() after the parameters got new values.
  void follow(Context& context) const;

 private:
  std::vector<State> states_;
  std::vector<Buffer> made_;
  std::vector<std::size_t> of_made_;  ///< for each buffer in made_, the index of its state in states_
};

}  // namespace lockstep::nn
