#pragma once

#include <cstdint>
#include <span>

/// One function for each reader of data that users and other programs write. The function gives the bytes to the
/// reader. It returns if the reader refused them with an error that its contract names, or if the reader accepted them
/// and the property in the function's comment holds. Everything else is a finding (support.hpp), or a crash.
namespace lockstep::fuzz {

using Input = std::span<const std::uint8_t>;

void cifar10(Input input);  ///< the samples are the bytes of the file (plain, gzip)
void choices(Input input);  ///< files of choices: ascend, are finite, are equal when written and read again
void config(Input input);   ///< TOML of --config: gives possible numbers of steps, a rate and a batch
void cost(Input input);     ///< cost.json: like choices
void devices(Input input);  ///< --devices on made-up GPUs: selects each device once
void idx(Input input);      ///< IDX files: like cifar10
void image(Input input);    ///< JPEG, PNG: has the pixels of its header; is refused at every size or at none
void json(Input input);     ///< JSON: is equal when written and read again
void launch(Input input);   ///< environments of launchers: a rank below its size; MPI's rank counts
void lists(Input input);    ///< lists of images: one image a line, labels of classes, equal when written and read again
void options(Input input);  ///< command lines: like config
void packed(Input input);   ///< files of lockstep-pack: samples lie one after the other, and are images at any size
void packed_tokens(Input input);  ///< like packed; ids are those in the file, below the vocabulary
void planted(Input input);        ///< has faults on purpose: the control of the replay program
void safetensors(Input input);    ///< tensors lie without gaps, and are equal when written and read again
void state(Input input);    ///< state.json of a checkpoint: values are in range, and equal when saved and read again
void tensors(Input input);  ///< tensors of a checkpoint: hold squares and counts; if refused, nothing changes
void tokens(Input input);   ///< token files: the ids are those in the file, below the vocabulary
void torch(Input input);    ///< tensors lie where strides and offsets say; safetensors allows their names
void units(Input input);    ///< numbers formatted for people: equal the number within its digits

}  // namespace lockstep::fuzz
