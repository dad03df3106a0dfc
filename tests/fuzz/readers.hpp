#pragma once

#include <cstdint>
#include <span>

/// One function for each reader of what users and other programs write. It gives the reader the bytes and returns when
/// they were refused with an error that the reader's contract names, or read and the properties hold that stand beside
/// it. Everything else is a finding (support.hpp), or a crash.
namespace lockstep::fuzz {

using Input = std::span<const std::uint8_t>;

void cifar10(Input input);  ///< samples read are the bytes of the file (plain, gzip)
void choices(Input input);  ///< ascend, are finite, are equal when written and read again
void config(Input input);   ///< TOML of --config: means steps, a rate and a batch that can be
void cost(Input input);     ///< cost.json: as choices
void devices(Input input);  ///< --devices on made-up GPUs: selects each device once
void idx(Input input);      ///< IDX files: like cifar10
void image(Input input);    ///< JPEG, PNG: has the pixels of its header; is refused at every size or at none
void json(Input input);     ///< is equal when written and read again
void launch(Input input);   ///< environments of launchers: a rank below its size; MPI's rank counts
void lists(Input input);  ///< lists of pictures: a picture a line, labels of classes, equal when written and read again
void options(Input input);        ///< command lines: as config
void packed(Input input);         ///< files of lockstep-pack: samples lie one after the other, are images at any size
void packed_tokens(Input input);  ///< files of text and tokens: like packed; ids are the file's, below the vocabulary
void planted(Input input);        ///< has faults on purpose: the control of the replay program
void safetensors(Input input);    ///< lie in the file without gaps, are equal when written and read again
void state(Input input);    ///< state.json of a checkpoint: lies in its ranges, is equal when saved and read again
void tensors(Input input);  ///< tensors of a checkpoint: hold squares and counts; refused, change nothing
void tokens(Input input);   ///< token ids are those of the file, below the vocabulary
void torch(Input input);    ///< lie in the file as strides and offsets say, have names that safetensors takes
void units(Input input);    ///< numbers written for people: the number within its digits

}  // namespace lockstep::fuzz
