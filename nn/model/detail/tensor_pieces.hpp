#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

namespace lockstep::nn {

/// A tensor of a ParameterSet and its form in a file, for model_file.cpp and step/state_file.cpp.
struct Piece {
  std::string name;
  Shape shape;         ///< shape in the file
  TensorView stored;   ///< contiguous view, padding included
  TensorView logical;  ///< view of the memory of `stored`: axes in the order of the file, without padding
};

/// Adds a piece for each parameter's part of `arena` (values() or an optimizer state). `suffix` follows each name.
void add_parameter_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena,
                          const std::string& suffix);
/// Adds a piece for each buffer's part of `arena` (evaluation_buffer_arena(), or the arena of a moving average).
void add_buffer_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena);

/// Adds the pieces of a state with the layout of the parameters or buffers. `arena` is memory with the whole state.
void add_state_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const State& state,
                      const TensorView& arena);

/// Writes a safetensors file with the pieces, and the tensors `more` on the host. Holds one piece at a time on the
/// host.
void write_pieces(const std::string& path, Context& context, const std::vector<Piece>& pieces,
                  std::vector<SafetensorsTensor> more = {}, const std::map<std::string, std::string>& metadata = {});

/// The noun that an error text uses for what the tensors of a file belong to ("the file is of another model").
using FileOf = const char*;
inline constexpr FileOf kModel = "model";
inline constexpr FileOf kModelOrOptimizer = "model or optimizer";

/// Finds the tensor of a file with this name and shape. Throws DataError if it is missing or has another shape.
const TensorEntry& entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of);
/// Finds a tensor like entry_of(). Also throws DataError if the tensor has no floating type.
const TensorEntry& floating_entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of);
/// Reads one tensor of a file into a strided host view and converts its type.
void read_entry(const TensorFile& file, const TensorEntry& entry, const TensorView& target);
/// Throws DataError unless the file has all pieces.
void require_pieces(const TensorFile& file, const std::vector<Piece>& pieces, FileOf of);
/// Reads the pieces from the file. Holds one piece at a time in host memory. Leaves padding as it is.
void read_pieces(const TensorFile& file, Context& context, const std::vector<Piece>& pieces);
/// Formats the shape of a tensor in a file: "(64, 3, 7, 7)".
[[nodiscard]] std::string shape_text(const TensorEntry& entry);

}  // namespace lockstep::nn
