#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep::nn {

/// Texts by name in the header of a safetensors file (Python: safe_open(...).metadata()). The name "format" is taken.
using Metadata = std::map<std::string, std::string>;

/// Writes the parameters and the averaged running statistics to a safetensors file, with the names and logical shapes
/// of torchvision and in the type of the values (f32 for 16-bit plans). At any moment `path` is the old file or the new
/// one. Local. DataError when it cannot be written.
///
/// The statistics are those of evaluation (ParameterSet::evaluation_buffer_arena()): Trainer::evaluate(),
/// average_statistics() and load_model() write them.
void save_model(const std::string& path, Context& context, const ParameterSet& parameters,
                const Metadata& metadata = {});

/// Reads such a file, or one of torch.save (runtime/files/torch_file.hpp), into parameters and running statistics.
/// path: the file, or a folder that contains model.safetensors (a checkpoint). Numbers may be F32, F64, F16 or BF16. A
/// tensor called ...num_batches_tracked is skipped: PyTorch counts batches there. Local: any rank may call it alone.
///
/// GPT-2 as Hugging Face and nanoGPT store it: names lose "transformer."; matrices of Hugging Face, (in, out), are
/// turned, which the one of c_attn tells, never being square; masks and a tied lm_head.weight are skipped.
///
/// DataError when there is no such file, when it is of neither format, when its checksum is not the one in a
/// checksums.json beside it, or when a tensor is missing, unknown or of another shape; the text names the tensor, the
/// shape found and the shape expected. All tensors are checked before anything changes.
void load_model(const std::string& path, Context& context, ParameterSet& parameters);

/// The same for a model that has other classes than the file. The head is the last layer with parameters. When its
/// tensors in the file differ from the model's only in the first extent (the number of classes), they keep their
/// present values. Returns their names; empty when the whole file fits.
[[nodiscard]] std::vector<std::string> load_pretrained(const std::string& path, Context& context, const Model& model,
                                                       ParameterSet& parameters);

/// The metadata of such a file, except "format"; path as in load_model().
[[nodiscard]] Metadata read_metadata(const std::string& path);

/// Opens the file of a path as load_model() does, with the names and shapes of our models. DataError when there is
/// none.
[[nodiscard]] TensorFile open_model_file(const std::string& path);
/// Throws the DataErrors of load_model().
void require_model(const TensorFile& file, const ParameterSet& parameters);
/// Reads a file that require_model() has accepted.
void read_model(const TensorFile& file, Context& context, ParameterSet& parameters);
/// Writes the file of save_model() directly to `path`, which must not exist.
void write_model(const std::string& path, Context& context, const ParameterSet& parameters, const Metadata& metadata);

}  // namespace lockstep::nn
