#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

namespace lockstep::nn {

/// A tensor of a ParameterSet and its form in a file. What model_file.cpp and step/state_file.cpp share.
struct Piece {
  std::string name;
  Shape shape;         ///< in the file
  TensorView stored;   ///< contiguous, padding included
  TensorView logical;  ///< in the same memory: axes in the order of the file, no padding
};

/// The parameters, as they lie in `arena` (values() or an optimizer state), each name followed by `suffix`.
void add_parameter_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena,
                          const std::string& suffix);
/// The buffers, as they lie in evaluation_buffer_arena().
void add_buffer_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters);

/// Writes the pieces, and `more` tensors that are on the host, with one piece at a time in host memory.
void write_pieces(const std::string& path, Context& context, const std::vector<Piece>& pieces,
                  std::vector<SafetensorsTensor> more = {}, const std::map<std::string, std::string>& metadata = {});

/// What a file whose tensors do not fit is another one of, for messages.
using FileOf = const char*;
inline constexpr FileOf kModel = "model";
inline constexpr FileOf kModelOrOptimizer = "model or optimizer";

/// The tensor of a file that has this shape. DataError when it is missing or has another one.
const SafetensorsEntry& entry_of(const SafetensorsFile& file, const std::string& name, const Shape& shape, FileOf of);
/// ... and a floating type.
const SafetensorsEntry& floating_entry_of(const SafetensorsFile& file, const std::string& name, const Shape& shape,
                                          FileOf of);
/// Reads one tensor of a file into a strided host view, converting its type.
void read_entry(const SafetensorsFile& file, const SafetensorsEntry& entry, const TensorView& target);
/// DataError unless the file has all pieces.
void require_pieces(const SafetensorsFile& file, const std::vector<Piece>& pieces, FileOf of);
/// Reads pieces that the file has, one at a time in host memory. Padding stays as it is.
void read_pieces(const SafetensorsFile& file, Context& context, const std::vector<Piece>& pieces);
/// A shape as it stands in a file.
[[nodiscard]] std::string shape_text(const SafetensorsEntry& entry);

}  // namespace lockstep::nn
