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
  same,     ///< equal on all ranks. A broadcast sends the state, and ranks compare it
  of_rank,  ///< different on each rank. A broadcast gives all ranks the root's value. A file has the values of all
            ///< ranks, one after the other. Another number of ranks starts from the initial value, or from the mean
  sum_of_ranks,  ///< different on each rank; only the sum over ranks matters. A broadcast does not send it. A file has
                 ///< the values of all ranks. Another number of ranks gets equal parts of the sum
  shard  ///< divided like the gradients. If ranks divide states (ParameterSet::shard_states()), each rank has its own
         ///< elements; otherwise the state is `same`. A file has the whole state
};

/// Form of a state in a file.
enum class StateLayout : unsigned char {
  tensor,      ///< one tensor, f64 or i64; a scalar has shape (1)
  parameters,  ///< the state is an arena like values() or gradients(); the file has one tensor per parameter, by name
  buffers      ///< the state is an arena like buffer_arena(); the file has one tensor per buffer
};

/// File of a saved state that holds a state (nn/step/state_file.hpp).
enum class StateFile : unsigned char {
  model,      ///< states that evaluation and inference read
  optimizer,  ///< all other states
  average     ///< states of a moving average that evaluation reads. If they differ between ranks, they are in the
              ///< optimizer's file. If a folder lacks this file, these states are set from the parameters
};

/// Action if a loaded file lacks a state. A sum_of_ranks in the layout of the parameters becomes 0 instead.
enum class Missing : unsigned char {
  refused,     ///< throws DataError
  kept,        ///< leaves the state unchanged
  kept_unlike  ///< leaves the state unchanged, even if the tensor in the file has another shape or type
};

/// Range of values that a state may have in a file. Other values are a DataError.
enum class Numbers : unsigned char { any, counts, scale };

/// A tensor that a run keeps from step to step, with the rules by which it is broadcast, compared, saved, loaded and
/// divided.
struct State {
  std::string name;  ///< name in comparisons and errors
  TensorView view;   ///< contiguous memory, which may have no elements
  Sharing sharing = Sharing::same;
  StateLayout layout = StateLayout::tensor;
  StateFile file = StateFile::optimizer;
  /// With StateLayout::tensor, name of the tensor in the file; empty if the state is not saved. With another layout,
  /// suffix after each parameter's name.
  std::string saved_as{};
  Missing missing = Missing::refused;
  std::string beside{};  ///< tensor that a file must have for Missing::refused to apply; empty: it applies to all files
  Numbers numbers = Numbers::any;
  std::string mean{};  ///< for Sharing::of_rank, name of the state that holds the mean over the ranks
  double initial = 0;
  std::function<void(Context&, const TensorView& state)> follow{};  ///< sets the state from the parameters
  /// True for an arena in the layout of the parameters that is equal on all ranks or divided between them.
  [[nodiscard]] bool in_arena() const {
    return layout == StateLayout::parameters && (sharing == Sharing::same || sharing == Sharing::shard);
  }
};

/// A state of the program itself (ParameterSet::register_state()).
struct StateSpec {
  std::string name;  ///< name, also in the file
  Shape shape{};     ///< shape; not used with Sharing::shard, which makes an arena like the gradients
  Sharing sharing = Sharing::same;
  DType dtype = DType::f32;  ///< f32, f64, or i64 with Sharing::same; not used with Sharing::shard
  double initial = 0;
  bool optional = false;  ///< true: a file may lack the state, which then keeps its value
};

/// List of all states of a run.
class StateRegistry {
 public:
  /// Adds a state in memory of the caller. Throws StateError when the name is empty or taken.
  void add(State state);
  /// Adds a state in memory of the registry, filled with `initial`. state.view gives type, shape and device.
  TensorView make(Context& context, MemoryResource& memory, State state);
  [[nodiscard]] std::span<const State> all() const { return states_; }
  [[nodiscard]] const State* find(std::string_view name) const;  ///< returns nullptr if there is no such state
  [[nodiscard]] TensorView view(std::string_view name) const;    ///< returns a view that is not given if there is none
  [[nodiscard]] const State& of(std::string_view name) const;    ///< throws StateError if there is no such state
  [[nodiscard]] std::size_t bytes() const;                       ///< bytes that make() has allocated
  [[nodiscard]] std::string text() const;  ///< a line for each state: name, type, shape, sharing; equal on all ranks
  /// Enqueues the initial values of the states that make() has allocated.
  void initialise(Context& context) const;
  /// Calls State::follow of each state that has one. Call it after the parameters got new values.
  void follow(Context& context) const;

 private:
  std::vector<State> states_;
  std::vector<Buffer> made_;
  std::vector<std::size_t> of_made_;  ///< for each buffer in made_, the index of its state in states_
};

}  // namespace lockstep::nn
