#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep::nn {

/// Map from names to texts, stored in the header of a safetensors file (in Python, safe_open(...).metadata()). Do not
/// use the reserved name "format".
using Metadata = std::map<std::string, std::string>;

/// Writes the parameters and the averaged running statistics to a safetensors file, with the names and logical shapes
/// of torchvision. The numbers have the type of ParameterSet::values() (f32 for 16-bit plans). The write is atomic: at
/// any moment, `path` is either the complete old file or the complete new file. Only the calling rank writes. Throws
/// DataError if the file cannot be written.
///
/// The written statistics are those of evaluation (ParameterSet::evaluation_buffer_arena()). Trainer::evaluate(),
/// average_statistics() and load_model() set these statistics.
void save_model(const std::string& path, Context& context, const ParameterSet& parameters,
                const Metadata& metadata = {});

/// Reads a file of save_model() or of torch.save (runtime/files/torch_file.hpp) into parameters and running statistics.
/// `path` is the file, or a folder that contains model.safetensors (a checkpoint). Numbers may be F32, F64, F16 or
/// BF16. Ignores tensors called ...num_batches_tracked, in which PyTorch counts batches. Local: uses no communicator.
///
/// Converts GPT-2 files of Hugging Face and nanoGPT: removes "transformer." from names, transposes the (in, out)
/// matrices of Hugging Face, and ignores masks and a tied lm_head.weight.
///
/// Throws DataError if there is no such file, if the file has neither format, if its checksum differs from a
/// checksums.json in its folder, or if a tensor is missing, unknown or of another shape. The error text names the
/// tensor, the shape found and the shape expected. All tensors are checked before anything changes.
void load_model(const std::string& path, Context& context, ParameterSet& parameters);

/// Reads a file as load_model() does, into a model that may have another number of classes. The head is the last layer
/// with parameters. If the head's tensors differ between file and model only in the first extent (the number of
/// classes), the head is not read, and the function returns the names of the head's tensors. If the shapes are equal,
/// the head is read, and the function returns an empty list.
[[nodiscard]] std::vector<std::string> load_pretrained(const std::string& path, Context& context, const Model& model,
                                                       ParameterSet& parameters);

/// Returns the metadata of a file, except "format". `path` is as in load_model().
[[nodiscard]] Metadata read_metadata(const std::string& path);

/// Opens the file that load_model() would read for `path`, and converts names and shapes to those of lockstep's models.
/// Throws DataError if there is no such file.
[[nodiscard]] TensorFile open_model_file(const std::string& path);
/// Throws the DataErrors of load_model() if `file` does not fit `parameters`. Changes nothing.
void require_model(const TensorFile& file, const ParameterSet& parameters);
/// Reads a file that require_model() has accepted.
void read_model(const TensorFile& file, Context& context, ParameterSet& parameters);
/// Writes the file that save_model() would write, directly to `path`, where no file may exist.
void write_model(const std::string& path, Context& context, const ParameterSet& parameters, const Metadata& metadata);

}  // namespace lockstep::nn
