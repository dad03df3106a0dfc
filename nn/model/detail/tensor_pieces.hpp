#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

namespace lockstep::nn {

/// A tensor of a ParameterSet and its form in a file. Shared by model_file.cpp and step/state_file.cpp.
struct Piece {
  std::string name;
  Shape shape;         ///< in the file
  TensorView stored;   ///< contiguous, padding included
  TensorView logical;  ///< the same memory: axes in the order of the file, without padding
};

/// Adds the parameters as they lie in `arena` (values() or an optimizer state); each name gets `suffix`.
void add_parameter_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena,
                          const std::string& suffix);
/// Adds the buffers as they lie in `arena` (evaluation_buffer_arena(), or that of a moving average).
void add_buffer_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena);

/// Adds a state whose layout is that of the parameters or buffers, as it lies in `arena`.
void add_state_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const State& state,
                      const TensorView& arena);

/// Writes the pieces, and `more` tensors on the host. Host memory holds one piece at a time.
void write_pieces(const std::string& path, Context& context, const std::vector<Piece>& pieces,
                  std::vector<SafetensorsTensor> more = {}, const std::map<std::string, std::string>& metadata = {});

/// What a file with unsuitable tensors belongs to, for error messages ("... of another model").
using FileOf = const char*;
inline constexpr FileOf kModel = "model";
inline constexpr FileOf kModelOrOptimizer = "model or optimizer";

/// The tensor of a file with this name and shape. DataError when it is missing or has another shape.
const TensorEntry& entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of);
/// The same, and it must have a floating type.
const TensorEntry& floating_entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of);
/// Reads one tensor of a file into a strided host view, converting its type.
void read_entry(const TensorFile& file, const TensorEntry& entry, const TensorView& target);
/// DataError unless the file has all pieces.
void require_pieces(const TensorFile& file, const std::vector<Piece>& pieces, FileOf of);
/// Reads the pieces from the file. Host memory holds one at a time. Padding does not change.
void read_pieces(const TensorFile& file, Context& context, const std::vector<Piece>& pieces);
/// A shape as a file writes it.
[[nodiscard]] std::string shape_text(const TensorEntry& entry);

}  // namespace lockstep::nn
