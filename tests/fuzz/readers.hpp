#pragma once

#include <cstdint>
#include <span>

/// One function for each reader of data that users and other programs write. The function gives the input to the reader
/// and returns in two cases. Either the reader refuses the input with an error of its contract. Or it accepts the
/// input, and the property in the function's comment below holds. Everything else is a finding (support.hpp) or a
/// crash. Round trip: the function writes the values that were read, and reads them again.
namespace lockstep::fuzz {

using Input = std::span<const std::uint8_t>;

void cifar10(Input input);  ///< reads CIFAR-10 files; property: samples equal the files' bytes
void choices(Input input);  ///< reads files of choices; property: times are >= 0; a round trip keeps the values
void config(Input input);   ///< reads TOML of --config; property: line numbers exist; values have no zero byte
void cost(Input input);  ///< reads cost.json; property: sizes ascend, times are ordered, a round trip keeps the values
void devices(Input input);  ///< parses --devices for made-up GPUs; property: no device is selected twice
void idx(Input input);      ///< reads IDX files, plain or gzip; property: samples equal the files' bytes
void image(Input input);    ///< decodes JPEG, PNG; property: sizes match the header, and all scales fail or none does
void json(Input input);     ///< reads JSON; property: a round trip keeps the value
void launch(Input input);   ///< reads launchers' variables; property: rank < size, and MPI's rank takes precedence
void lists(Input input);    ///< reads lists of images; property: one image a line, and a round trip keeps the list
void options(Input input);  ///< parses command lines; property: steps, learning rate and batch size are in range
void packed(Input input);   ///< reads packed samples; property: samples equal the bytes; check_packed() finds damage
void packed_tokens(Input input);  ///< reads packed tokens; property: ids equal the file's bytes and are < vocabulary
void planted(Input input);        ///< has planted faults, to test the replay program itself
void safetensors(Input input);  ///< reads safetensors; property: no gaps between tensors; a round trip keeps the values
void state(Input input);        ///< reads state.json; property: values are in range; a round trip keeps the values
void tensors(Input input);  ///< loads tensors; property: squares and counts are >= 0; a refused file changes nothing
void tokens(Input input);   ///< reads token files; property: ids equal the file's bytes and are < vocabulary
void torch(Input input);  ///< reads torch files; property: elements follow the strides; names are valid in safetensors
void units(Input input);  ///< formats numbers; property: the text equals the number within the digits shown

}  // namespace lockstep::fuzz
