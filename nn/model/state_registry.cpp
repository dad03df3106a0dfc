#include <lockstep/nn/model/state_registry.hpp>

#include <algorithm>
#include <utility>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

void StateRegistry::add(State state) {
  require<StateError>(!state.name.empty(), "states: the name of a state is empty, expected at least one character");
  require<StateError>(find(state.name) == nullptr, "states: there is a state '", state.name,
                      "' already, expected another name");
  states_.push_back(std::move(state));
}

TensorView StateRegistry::make(Context& context, MemoryResource& memory, State state) {
  Buffer buffer(state.view.bytes(), memory, context.stream());
  state.view.data = buffer.data();
  ops::fill(context, state.initial, state.view);
  add(std::move(state));
  made_.push_back(std::move(buffer));
  of_made_.push_back(states_.size() - 1);
  return states_.back().view;
}

const State* StateRegistry::find(std::string_view name) const {
  const auto found =
      std::find_if(states_.begin(), states_.end(), [&](const State& state) { return state.name == name; });
  return found == states_.end() ? nullptr : &*found;
}

TensorView StateRegistry::view(std::string_view name) const {
  const State* const state = find(name);
  return state != nullptr ? state->view : TensorView();
}

const State& StateRegistry::of(std::string_view name) const {
  const State* const state = find(name);
  require<StateError>(state != nullptr, "there is no state '", name, "', expected one that was added");
  return *state;
}

std::size_t StateRegistry::bytes() const {
  std::size_t bytes = 0;
  for (const Buffer& buffer : made_) {
    bytes += buffer.bytes();
  }
  return bytes;
}

std::string StateRegistry::text() const {
  static constexpr const char* kSharing[] = {"the same on all ranks", "of each rank", "a part of a sum", "a shard"};
  std::string text;
  for (const State& state : states_) {
    const bool by_rank = state.sharing == Sharing::shard;  // a shard's shape may differ between ranks
    text += concat("state '", state.name, "' ", state.view.dtype, ' ',
                   by_rank ? std::string() : concat(state.view.shape, ' '),
                   kSharing[static_cast<std::size_t>(state.sharing)], '\n');
  }
  return text;
}

void StateRegistry::initialise(Context& context) const {
  for (const std::size_t index : of_made_) {
    ops::fill(context, states_[index].initial, states_[index].view);
  }
}

void StateRegistry::follow(Context& context) const {
  for (const State& state : states_) {
    if (state.follow) {
      state.follow(context, state.view);
    }
  }
}

}  // namespace lockstep::nn
