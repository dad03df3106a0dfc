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

/// How the ranks share a state.
enum class Sharing : unsigned char {
  same,          ///< equal on all ranks: broadcast, and compared
  of_rank,       ///< each rank's own. A broadcast gives all ranks the root's. A file has that of every rank, one behind
                 ///< the other; on another number of ranks the state begins anew, or with the mean
  sum_of_ranks,  ///< each rank's own, and only the sum over the ranks counts. No broadcast. A file has that of every
                 ///< rank; on another number of ranks each gets an equal part of the sum
  shard  ///< like the gradients: where ranks divide states (ParameterSet::shard_states()) each has its elements,
         ///< else it is `same`. A file has the whole
};

/// How a file holds a state.
enum class StateLayout : unsigned char {
  tensor,      ///< as one tensor, f64 or i64; a scalar has shape (1)
  parameters,  ///< the state is an arena like values() or gradients(): a tensor for each parameter, by its name
  buffers      ///< an arena like buffer_arena(): a tensor for each buffer
};

/// The file of a saved state (nn/step/state_file.hpp).
enum class StateFile : unsigned char {
  model,      ///< what evaluation and inference read
  optimizer,  ///< all else
  average     ///< what evaluation reads of a moving average. Tensors of each rank are in the optimizer's file; in a
              ///< folder without this file these states follow the parameters
};

/// What loading does with a state that the file lacks. A sum_of_ranks in the layout of the parameters becomes 0 then.
enum class Missing : unsigned char {
  refused,     ///< DataError
  kept,        ///< the state does not change
  kept_unlike  ///< the same, also where the file's has another shape or type
};

/// The numbers that a state may have in a file (DataError otherwise).
enum class Numbers : unsigned char { any, counts, scale };

/// A tensor that a run keeps from step to step: it is broadcast, compared, saved, loaded and divided as this says.
struct State {
  std::string name;  ///< in comparisons and errors
  TensorView view;   ///< contiguous; it may have no elements
  Sharing sharing = Sharing::same;
  StateLayout layout = StateLayout::tensor;
  StateFile file = StateFile::optimizer;
  std::string saved_as{};  ///< of a tensor its name, empty: in no file; else what follows a parameter's name
  Missing missing = Missing::refused;
  std::string beside{};  ///< missing is `refused` only in a file that has this tensor; empty: in all
  Numbers numbers = Numbers::any;
  std::string mean{};  ///< of_rank: the state that holds the mean over the ranks
  double initial = 0;
  std::function<void(Context&, const TensorView& state)> follow{};  ///< sets it from the parameters
  /// Whether it is an arena in the layout of the parameters that all ranks make up together.
  [[nodiscard]] bool in_arena() const {
    return layout == StateLayout::parameters && (sharing == Sharing::same || sharing == Sharing::shard);
  }
};

/// A state of the program's own (ParameterSet::register_state()).
struct StateSpec {
  std::string name;  ///< in the file, too
  Shape shape{};     ///< not used with Sharing::shard: one dimension like the gradients
  Sharing sharing = Sharing::same;
  DType dtype = DType::f32;  ///< f32, f64, or i64 with Sharing::same; not used with Sharing::shard
  double initial = 0;
  bool optional = false;  ///< a file that lacks it is no error: the state keeps its value
};

/// The states of a run, in one list.
class StateRegistry {
 public:
  /// Adds a state in memory of the caller. StateError when the name is taken.
  void add(State state);
  /// Adds a state in memory of the registry, filled with `initial`. view gives its type, shape and device.
  TensorView make(Context& context, MemoryResource& memory, State state);
  [[nodiscard]] std::span<const State> all() const { return states_; }
  [[nodiscard]] const State* find(std::string_view name) const;  ///< nullptr when there is none
  [[nodiscard]] TensorView view(std::string_view name) const;    ///< not given when there is none
  [[nodiscard]] const State& of(std::string_view name) const;    ///< StateError when there is none
  [[nodiscard]] std::size_t bytes() const;                       ///< of what make() has allocated
  [[nodiscard]] std::string text() const;  ///< a line for each: name, type, shape, sharing; equal on all ranks
  /// Enqueues the initial values of what make() has allocated.
  void initialise(Context& context) const;
  /// The parameters have new values: calls `follow` where there is one.
  void follow(Context& context) const;

 private:
  std::vector<State> states_;
  std::vector<Buffer> made_;
  std::vector<std::size_t> of_made_;  ///< states in made_
};

}  // namespace lockstep::nn
