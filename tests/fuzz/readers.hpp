#pragma once

#include <cstdint>
#include <span>

/// One function for each reader of what users and other programs write. It gives the reader the bytes and returns when
/// they were refused with an error that the reader's contract names, or read and the properties hold that README.md
/// lists. Everything else is a finding (support.hpp), or a crash.
namespace lockstep::fuzz {

using Input = std::span<const std::uint8_t>;

void cifar10(Input input);
void choices(Input input);
void config(Input input);
void cost(Input input);
void devices(Input input);
void idx(Input input);
void image(Input input);
void json(Input input);
void launch(Input input);
void options(Input input);
void planted(Input input);  ///< has faults on purpose: the control of the replay program
void safetensors(Input input);
void state(Input input);
void tensors(Input input);
void torch(Input input);
void units(Input input);

}  // namespace lockstep::fuzz
