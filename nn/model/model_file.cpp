#include <lockstep/nn/model/model_file.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <set>
#include <string_view>
#include <system_error>

#include <lockstep/nn/model/detail/gpt2_names.hpp>
#include <lockstep/nn/model/detail/tensor_pieces.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

namespace fs = std::filesystem;

/// Returns the pieces of all states that are saved in the model's file.
std::vector<Piece> model_pieces(const ParameterSet& parameters) {
  std::vector<Piece> pieces;
  for (const State& state : parameters.states().all()) {
    if (state.file == StateFile::model) {
      add_state_pieces(pieces, parameters, state, state.view);
    }
  }
  return pieces;
}

/// Returns true for counters of PyTorch's BatchNorm and AveragedModel, which are skipped when a file is read.
bool ignored(const TensorEntry& entry) {
  return entry.name.ends_with(".num_batches_tracked") || entry.name == "n_averaged";
}

/// Prefixes that other programs put before the names of a model's tensors: "module." of DistributedDataParallel and
/// AveragedModel, "_orig_mod." of torch.compile, "model." of Lightning. A name may have several prefixes.
constexpr std::array<std::string_view, 3> kPrefixes{"module.", "_orig_mod.", "model."};

/// If no tensor of the file has a name of the model, removes the prefix (one or several of kPrefixes) from all names.
void take_off_prefix(TensorFile& file, const ParameterSet& parameters) {
  std::set<std::string, std::less<>> names;
  for (const Piece& piece : model_pieces(parameters)) {
    names.insert(piece.name);
  }
  std::string_view prefix;
  for (const TensorEntry& entry : file.entries()) {
    std::string_view rest = entry.name;
    if (names.contains(rest)) {
      return;
    }
    for (bool found = true; found && !names.contains(rest);) {
      const auto* const begin = std::find_if(kPrefixes.begin(), kPrefixes.end(),
                                             [&](std::string_view each) { return rest.starts_with(each); });
      found = begin != kPrefixes.end();
      rest.remove_prefix(found ? begin->size() : 0);
    }
    if (names.contains(rest)) {
      prefix = std::string_view(entry.name).substr(0, entry.name.size() - rest.size());
    }
  }
  std::vector<TensorEntry> entries = file.entries();
  const std::string taken(prefix);
  for (TensorEntry& entry : entries) {
    if (entry.name.starts_with(taken)) {
      entry.name.erase(0, taken.size());
    }
  }
  file.set_entries(std::move(entries));
}

/// Throws DataError if the file lacks a piece, or has a tensor that is neither a piece nor named in `left`.
void require_fit(const TensorFile& file, const std::vector<Piece>& pieces, const std::vector<std::string>& left) {
  require_pieces(file, pieces, kModel);
  std::set<std::string> known(left.begin(), left.end());
  for (const Piece& piece : pieces) {
    known.insert(piece.name);
  }
  for (const TensorEntry& entry : file.entries()) {
    if (!ignored(entry) && known.count(entry.name) == 0) {
      throw DataError(concat(file.path(), ": tensor '", entry.name, "' has shape ", shape_text(entry),
                             ", expected no tensor of this name; the file is of another model"));
    }
  }
}

void read_fitting(const TensorFile& file, Context& context, ParameterSet& parameters,
                  const std::vector<Piece>& pieces) {
  parameters.changed();  // must also be called if reading fails
  read_pieces(file, context, pieces);
  parameters.round_weights(context);
  copy(context, parameters.evaluation_buffer_arena(), parameters.buffer_arena());
  parameters.spread_statistics(context);
  parameters.states().follow(context);
  context.synchronize();
}

/// Returns the parameters of the last layer that has parameters, or an empty list if another layer shares one of these
/// parameters.
std::vector<ParameterSpec> head_of(const Model& model) {
  const std::vector<Node>& nodes = model.nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend() && node->layer; ++node) {
    std::vector<ParameterSpec> specs = node->layer->parameters(input_shapes(nodes, *node));
    if (!specs.empty()) {
      const std::vector<Model::Parameter> all = model.parameters();
      const bool shared = std::any_of(all.begin(), all.end(), [&](const Model::Parameter& parameter) {
        return parameter.writes > 1 && std::any_of(specs.begin(), specs.end(), [&](const ParameterSpec& spec) {
                 return spec.name == parameter.spec.name;
               });
      });
      return shared ? std::vector<ParameterSpec>{} : specs;
    }
  }
  return {};
}

/// Returns the names of the tensors of the head (the last layer with parameters) if only their first extent, the number
/// of classes, differs between file and model. Returns an empty list if the file lacks a tensor of the head, has the
/// model's number of classes, or differs in another extent.
std::vector<std::string> other_head(const TensorFile& file, const Model& model) {
  std::vector<std::string> names;
  std::int64_t classes = model.classes();
  for (const ParameterSpec& spec : head_of(model)) {
    const TensorEntry* entry = file.find(spec.name);
    if (entry == nullptr || static_cast<int>(entry->shape.size()) != spec.shape.rank() || entry->shape.empty() ||
        spec.shape[0] != model.classes() ||
        !std::equal(entry->shape.begin() + 1, entry->shape.end(), spec.shape.begin() + 1) ||
        entry->shape[0] == model.classes() || (!names.empty() && entry->shape[0] != classes)) {
      return {};
    }
    classes = entry->shape[0];
    names.push_back(spec.name);
  }
  return names;
}

/// Returns the path of the model file. `path` is the path of the model file itself, or of the folder that contains the
/// model file.
std::string model_path(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const std::string index = concat(path, '/', kModelFile, ".index.json");
    require<DataError>(file_exists(concat(path, '/', kModelFile)) || !file_exists(index), index,
                       ": weights in several files, which lockstep does not read; expected one file, ", kModelFile);
    return path + "/" + kModelFile;
  }
  if (file_exists(path)) {
    return path;
  }
  const std::string folder = path.empty() ? "" : find_folder(path);  // also finds a folder that is being replaced
  require<FileError>(!folder.empty(), path, ": there is no such file or folder, expected ", kModelFile,
                     " or a folder with one");
  return folder + "/" + kModelFile;
}

/// Throws DataError if the folder of `file` has a checksums.json, and the checksum of `file` differs from it.
void require_unchanged(const TensorFile& file) {
  const fs::path path(file.path());
  require_checksums(path.has_parent_path() ? path.parent_path().string() : ".", {path.filename().string()});
}

}  // namespace

TensorFile open_model_file(const std::string& path) {
  TensorFile file = open_tensor_file(model_path(path));
  read_as_gpt2(file);
  return file;
}

void require_model(const TensorFile& file, const ParameterSet& parameters) {
  require_fit(file, model_pieces(parameters), {});
}

void read_model(const TensorFile& file, Context& context, ParameterSet& parameters) {
  read_fitting(file, context, parameters, model_pieces(parameters));
}

void write_model(const std::string& path, Context& context, const ParameterSet& parameters, const Metadata& metadata) {
  require<UsageError>(metadata.count("format") == 0,
                      "metadata: a name is 'format', which the file format uses itself; expected another name");
  write_pieces(path, context, model_pieces(parameters), {}, metadata);
}

void save_model(const std::string& path, Context& context, const ParameterSet& parameters, const Metadata& metadata) {
  const std::string temporary = temporary_beside(path);
  write_model(temporary, context, parameters, metadata);
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) {
    std::error_code ignored_error;
    fs::remove(temporary, ignored_error);
    throw DataError(
        concat(path, ": cannot be replaced: ", error.message(), "; expected a file that this user may replace"));
  }
  const std::string folder = fs::path(path).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

void load_model(const std::string& path, Context& context, ParameterSet& parameters) {
  TensorFile file = open_model_file(path);
  take_off_prefix(file, parameters);
  require_model(file, parameters);
  require_unchanged(file);
  read_model(file, context, parameters);
}

std::vector<std::string> load_pretrained(const std::string& path, Context& context, const Model& model,
                                         ParameterSet& parameters) {
  TensorFile file = open_model_file(path);
  take_off_prefix(file, parameters);
  std::vector<std::string> left = other_head(file, model);
  std::vector<Piece> pieces = model_pieces(parameters);
  std::erase_if(pieces,
                [&](const Piece& piece) { return std::find(left.begin(), left.end(), piece.name) != left.end(); });
  require_fit(file, pieces, left);
  require_unchanged(file);
  read_fitting(file, context, parameters, pieces);
  return left;
}

Metadata read_metadata(const std::string& path) {
  Metadata metadata = open_model_file(path).metadata();
  metadata.erase("format");
  return metadata;
}

}  // namespace lockstep::nn
