#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

namespace lockstep::nn {

/// A tensor of a ParameterSet, with its name and shape in a file. model_file.cpp and step/state_file.cpp read and write
/// pieces.
struct Piece {
  std::string name;
  Shape shape;         ///< shape in the file
  TensorView stored;   ///< contiguous view in memory, padding included
  TensorView logical;  ///< view of the memory of `stored`: axes in the order of the file, without padding
};

/// Adds a piece for each parameter in `arena`, which must be values() or an optimizer state. The name of a piece is the
/// parameter's name followed by `suffix`.
void add_parameter_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena,
                          const std::string& suffix);
/// Adds a piece for each buffer in `arena` (evaluation_buffer_arena(), or the arena of a moving average).
void add_buffer_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena);

/// Adds the pieces of `state`, whose layout must be StateLayout::parameters or StateLayout::buffers. `arena` holds the
/// state of all ranks.
void add_state_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const State& state,
                      const TensorView& arena);

/// Writes a safetensors file with the pieces and with the tensors `more`, which are on the host. At most one piece at a
/// time is copied to the host.
void write_pieces(const std::string& path, Context& context, const std::vector<Piece>& pieces,
                  std::vector<SafetensorsTensor> more = {}, const std::map<std::string, std::string>& metadata = {});

/// Word that error texts use for the owner of a file's tensors, like "model" in "the file is of another model".
using FileOf = const char*;
inline constexpr FileOf kModel = "model";
inline constexpr FileOf kModelOrOptimizer = "model or optimizer";

/// Returns the tensor `name` of a file. Throws DataError if the tensor is missing or its shape is not `shape`.
const TensorEntry& entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of);
/// Returns a tensor like entry_of(). Also throws DataError if the tensor's type is not a floating type.
const TensorEntry& floating_entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of);
/// Reads one tensor of a file into `target`, a strided host view, and converts its type.
void read_entry(const TensorFile& file, const TensorEntry& entry, const TensorView& target);
/// Throws DataError unless floating_entry_of() finds a tensor for every piece.
void require_pieces(const TensorFile& file, const std::vector<Piece>& pieces, FileOf of);
/// Reads the pieces from the file. Holds one piece at a time in host memory. Does not change padding.
void read_pieces(const TensorFile& file, Context& context, const std::vector<Piece>& pieces);
/// Formats the shape of a tensor in a file, like "(64, 3, 7, 7)".
[[nodiscard]] std::string shape_text(const TensorEntry& entry);

}  // namespace lockstep::nn
