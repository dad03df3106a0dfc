#pragma once

#include <cstdint>
#include <span>

/// One function for each reader of data that users and other programs write. The function gives the input to the reader
/// and returns in two cases. Either the reader refuses the input with an error of its contract. Or it accepts the
/// input, and the property in the comment below holds. Everything else is a finding (support.hpp) or a crash.
namespace lockstep::fuzz {

using Input = std::span<const std::uint8_t>;

void cifar10(Input input);  ///< CIFAR-10 files: samples equal the files' bytes
void choices(Input input);  ///< files of choices: times are finite, not negative; writing and reading changes nothing
void config(Input input);   ///< TOML of --config: line numbers are possible; values hold no zero byte
void cost(Input input);     ///< cost.json: sizes ascend, times are ordered; writing and reading changes nothing
void devices(Input input);  ///< --devices on made-up GPUs: no device is selected twice
void idx(Input input);      ///< IDX files, plain or gzip: samples equal the files' bytes
void image(Input input);    ///< JPEG, PNG: pictures have the header's size; decoding fails at every scale or at none
void json(Input input);     ///< JSON: writing and reading changes nothing
void launch(Input input);   ///< environments of launchers: rank below size; a rank that MPI reports takes precedence
void lists(Input input);    ///< lists of images: one image a line; writing and reading changes nothing
void options(Input input);  ///< command lines: steps, rate and batch size are possible numbers
void packed(Input input);   ///< files of lockstep-pack: samples equal the file's bytes; check_packed() finds damage
void packed_tokens(Input input);  ///< files of packed tokens: ids equal the file's bytes and are below the vocabulary
void planted(Input input);        ///< reader with planted faults: a control of the replay program
void safetensors(Input input);    ///< safetensors: no gaps between tensors; writing and reading changes nothing
void state(Input input);    ///< state.json of a checkpoint: values are in range; saving and reading changes nothing
void tensors(Input input);  ///< a checkpoint's tensors: squares and counts are >= 0; a refused file changes nothing
void tokens(Input input);   ///< token files: ids equal the file's bytes and are below the vocabulary
void torch(Input input);    ///< torch files: elements are at their strides; safetensors allows the names
void units(Input input);    ///< formatted numbers: the text equals the number within the digits shown

}  // namespace lockstep::fuzz
