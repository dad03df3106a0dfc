#include <lockstep/nn/checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>

#include <lockstep/comm/text.hpp>
#include <lockstep/nn/atomic_folder.hpp>
#include <lockstep/nn/file.hpp>
#include <lockstep/nn/json.hpp>
#include <lockstep/nn/safetensors.hpp>
#include <lockstep/runtime/copy.hpp>

namespace lockstep::nn {

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr std::int64_t kFormat = 1;

/// An arena copied to the host, so that strides and types are converted there for every device alike.
class HostArena {
 public:
  explicit HostArena(const TensorView& like)
      : bytes_(like.bytes()), view_(bytes_.data(), like.dtype, Device::cpu(), like.shape) {}
  void download(Context& context, const TensorView& arena) {
    copy(context, arena, view_);
    context.synchronize();
  }
  void upload(Context& context, const TensorView& arena) {
    copy(context, view_, arena);
    context.synchronize();
  }
  [[nodiscard]] const TensorView& view() const { return view_; }
  /// The elements of `device_part` (a view into the arena `device_arena`) in this copy.
  [[nodiscard]] TensorView same_part(const TensorView& device_part, const TensorView& device_arena) {
    TensorView part = device_part;
    part.data =
        bytes_.data() + (static_cast<std::byte*>(device_part.data) - static_cast<std::byte*>(device_arena.data));
    part.device = Device::cpu();
    return part;
  }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

std::vector<std::int64_t> extents(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

/// Tensors to write, with the row-major bytes that they point to.
class TensorList {
 public:
  void add(std::string name, const Shape& shape, const TensorView& strided) {
    CpuContext host({.threads = 1});
    std::vector<std::byte>& bytes = storage_.emplace_back(strided.bytes());
    copy(host, strided, TensorView(bytes.data(), strided.dtype, Device::cpu(), strided.shape));
    tensors_.push_back(
        {.name = std::move(name), .dtype = strided.dtype, .shape = extents(shape), .data = bytes, .fill = {}});
  }
  void write(const std::string& path) const { write_safetensors(path, tensors_, {{"format", "pt"}}); }

 private:
  std::vector<std::vector<std::byte>> storage_;
  std::vector<SafetensorsTensor> tensors_;
};

void write_model(const std::string& path, Context& context, ParameterSet& parameters) {
  TensorList list;
  HostArena values(parameters.values());
  values.download(context, parameters.values());
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const ParameterSpec& spec = parameters.parameters()[i].spec;
    list.add(spec.name, spec.shape, parameters.logical(static_cast<int>(i), values.view()));
  }
  HostArena buffers(parameters.evaluation_buffer_arena());
  buffers.download(context, parameters.evaluation_buffer_arena());
  for (std::size_t i = 0; i < parameters.buffers().size(); ++i) {
    const TensorView part =
        buffers.same_part(parameters.evaluation_buffer(static_cast<int>(i)), parameters.evaluation_buffer_arena());
    list.add(parameters.buffers()[i].name, part.shape, part);
  }
  list.write(path);
}

/// Optimizer state as "<parameter>.<state>", and "rank_buffers" (ranks, buffer elements as they lie in the arena).
void write_optimizer(const std::string& path, Context& context, ParameterSet& parameters,
                     std::vector<double>& rank_buffers, int ranks) {
  TensorList list;
  for (const std::string& name : parameters.state_names()) {
    HostArena state(parameters.state(name));
    state.download(context, parameters.state(name));
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      const ParameterSpec& spec = parameters.parameters()[i].spec;
      list.add(spec.name + "." + name, spec.shape, parameters.logical(static_cast<int>(i), state.view()));
    }
  }
  const Shape shape{ranks, static_cast<std::int64_t>(rank_buffers.size()) / ranks};
  list.add("rank_buffers", shape, TensorView(std::span<double>(rank_buffers), shape));
  list.write(path);
}

/// Reads one tensor of a file into a strided host view, converting its type.
void read_tensor(const SafetensorsFile& file, const std::string& name, const Shape& shape, const TensorView& target) {
  const SafetensorsEntry* entry = file.find(name);
  require<DataError>(entry != nullptr, file.path(), ": there is no tensor '", name,
                     "'; the checkpoint is of another model");
  require<DataError>(
      entry->shape == extents(shape), file.path(), ": tensor '", name, "' has shape ",
      Shape(std::span<const std::int64_t>(entry->shape.data(), std::min<std::size_t>(entry->shape.size(), 8))),
      ", expected ", shape, "; the checkpoint is of another model");
  require<DataError>(entry->type().has_value() && is_floating(*entry->type()), file.path(), ": tensor '", name, "' is ",
                     entry->dtype, ", expected F32, F64, F16 or BF16");
  std::vector<std::byte> bytes(entry->bytes);
  file.read(*entry, bytes);
  CpuContext host({.threads = 1});
  copy(host, TensorView(bytes.data(), *entry->type(), Device::cpu(), target.shape), target);
}

Json to_json(const RunIdentity& identity) {
  Json::Object options;
  for (const auto& [key, value] : identity.options) {
    options[key] = value;
  }
  Json::Object choices;
  for (const auto& [key, value] : identity.choices) {
    choices[key] = value;
  }
  Json::Array buckets(identity.buckets.begin(), identity.buckets.end());
  Json::Array hidden(identity.hidden.begin(), identity.hidden.end());
  return Json::Object{{"model", identity.model},
                      {"classes", identity.classes},
                      {"height", identity.height},
                      {"width", identity.width},
                      {"hidden", hidden},
                      {"seed", identity.seed},
                      {"ranks", identity.ranks},
                      {"threads", identity.threads},
                      {"global_batch", identity.global_batch},
                      {"options", options},
                      {"choices", choices},
                      {"buckets", buckets}};
}

std::vector<std::int64_t> integers(const Json& json, const std::string& key, const std::string& source) {
  std::vector<std::int64_t> values;
  for (const Json& item : json.get<Json::Array>(key, source)) {
    values.push_back(item.as<std::int64_t>(concat(source, ": ", key)));
  }
  return values;
}

std::map<std::string, std::string> texts(const Json& json, const std::string& key, const std::string& source) {
  std::map<std::string, std::string> values;
  for (const auto& [name, item] : json.get<Json::Object>(key, source)) {
    values[name] = item.as<std::string>(concat(source, ": ", key));
  }
  return values;
}

RunIdentity identity_of(const Json& json, const std::string& source) {
  RunIdentity identity;
  identity.model = json.get<std::string>("model", source);
  identity.classes = json.get<std::int64_t>("classes", source);
  identity.height = json.get<std::int64_t>("height", source);
  identity.width = json.get<std::int64_t>("width", source);
  identity.hidden = integers(json, "hidden", source);
  identity.seed = json.get<std::uint64_t>("seed", source);
  identity.ranks = static_cast<int>(json.get<std::int64_t>("ranks", source));
  identity.threads = static_cast<int>(json.get<std::int64_t>("threads", source));
  identity.global_batch = json.get<std::int64_t>("global_batch", source);
  identity.options = texts(json, "options", source);
  identity.choices = texts(json, "choices", source);
  identity.buckets = integers(json, "buckets", source);
  return identity;
}

std::string existing_folder(const std::string& dir) {
  std::string folder = find_folder(dir);
  require<DataError>(!folder.empty(), dir, ": there is no checkpoint, expected a folder with ", kStateFile, " and ",
                     kModelFile);
  return folder;
}

/// The items of two identities that differ, one a line.
std::string differences(const RunIdentity& saved, const RunIdentity& now) {
  std::string text;
  const Json a = to_json(saved);
  const Json b = to_json(now);
  for (const auto& [key, value] : *a.if_object()) {
    const Json& other = b.if_object()->at(key);
    if (value == other) {
      continue;
    }
    if (const Json::Object* members = value.if_object()) {
      for (const auto& [name, item] : *members) {
        const auto found = other.if_object()->find(name);
        const std::string text_now = found == other.if_object()->end() ? "nothing" : found->second.text();
        if (text_now != item.text()) {
          text += concat(key, " '", name, "': checkpoint ", item.text(), ", now ", text_now, '\n');
        }
      }
    } else {
      text += concat(key, ": checkpoint ", value.text(), ", now ", other.text(), '\n');
    }
  }
  return text;
}

}  // namespace

void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress) {
  trainer.reduce_buffers();
  std::vector<double> rank_buffers = trainer.gather_rank_buffers();
  std::string failure;
  if (control.rank() == 0) {
    try {
      AtomicFolder folder(dir);
      write_model(folder.file(kModelFile), trainer.context(), trainer.parameters());
      write_optimizer(folder.file(kOptimizerFile), trainer.context(), trainer.parameters(), rank_buffers,
                      control.size());
      const Json::Array seen(progress.samples_seen.begin(), progress.samples_seen.end());
      const Json state = Json::Object{{"format", kFormat},
                                      {"identity", to_json(identity)},
                                      {"epoch", progress.position.epoch},
                                      {"batch", progress.position.batch},
                                      {"step", progress.position.step},
                                      {"best_accuracy", progress.best_accuracy},
                                      {"test_accuracy", progress.test_accuracy},
                                      {"samples_seen", seen}};
      write_file(folder.file(kStateFile), state.text(2) + "\n");
      folder.commit();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  failure = comm::broadcast_text(control, failure);
  require<DataError>(failure.empty(), failure);
}

CheckpointState read_checkpoint_state(const std::string& dir) {
  const std::string path = existing_folder(dir) + "/" + kStateFile;
  const Json json = read_json(path);
  const auto format = json.get<std::int64_t>("format", path);
  require<DataError>(format == kFormat, path, ": format is ", format, ", expected ", kFormat);
  CheckpointState state;
  state.identity = identity_of(json.member("identity", path), path + ": identity");
  state.progress.position = {.epoch = json.get<std::int64_t>("epoch", path),
                             .batch = json.get<std::int64_t>("batch", path),
                             .step = json.get<std::int64_t>("step", path)};
  state.progress.best_accuracy = json.get<double>("best_accuracy", path);
  state.progress.test_accuracy = json.get<double>("test_accuracy", path);
  for (const Json& item : json.get<Json::Array>("samples_seen", path)) {
    state.progress.samples_seen.push_back(item.as<double>(path + ": samples_seen"));
  }
  const Position& at = state.progress.position;
  require<DataError>(at.epoch >= 0 && at.batch >= 0 && at.step >= 0, path, ": epoch ", at.epoch, ", batch ", at.batch,
                     ", step ", at.step, ", expected none negative");
  return state;
}

void load_model(const std::string& dir, Context& context, ParameterSet& parameters) {
  const SafetensorsFile file(existing_folder(dir) + "/" + kModelFile);
  std::size_t used = 0;
  HostArena values(parameters.values());
  values.download(context, parameters.values());  // keeps the padding
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const ParameterSpec& spec = parameters.parameters()[i].spec;
    read_tensor(file, spec.name, spec.shape, parameters.logical(static_cast<int>(i), values.view()));
    ++used;
  }
  HostArena buffers(parameters.evaluation_buffer_arena());
  buffers.download(context, parameters.evaluation_buffer_arena());
  for (std::size_t i = 0; i < parameters.buffers().size(); ++i) {
    const BufferSpec& spec = parameters.buffers()[i];
    read_tensor(
        file, spec.name, spec.shape,
        buffers.same_part(parameters.evaluation_buffer(static_cast<int>(i)), parameters.evaluation_buffer_arena()));
    ++used;
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    // PyTorch counts batches there; nothing here needs the count.
    if (entry.name.ends_with(".num_batches_tracked")) {
      ++used;
    }
  }
  require<DataError>(used == file.entries().size(), file.path(), ": ", file.entries().size(), " tensors, expected ",
                     used, "; the checkpoint is of another model");
  values.upload(context, parameters.values());
  buffers.upload(context, parameters.evaluation_buffer_arena());
  buffers.upload(context, parameters.buffer_arena());
}

std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                              const RunIdentity& identity, RunProgress& progress) {
  const CheckpointState saved = read_checkpoint_state(dir);
  ParameterSet& parameters = trainer.parameters();
  Context& context = trainer.context();
  load_model(dir, context, parameters);
  const SafetensorsFile file(existing_folder(dir) + "/" + kOptimizerFile);
  for (const std::string& name : parameters.state_names()) {
    HostArena state(parameters.state(name));
    state.download(context, parameters.state(name));
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      const ParameterSpec& spec = parameters.parameters()[i].spec;
      read_tensor(file, spec.name + "." + name, spec.shape, parameters.logical(static_cast<int>(i), state.view()));
    }
    state.upload(context, parameters.state(name));
  }
  const std::int64_t elements = parameters.buffer_arena().numel();
  std::vector<double> own(static_cast<std::size_t>(elements));
  double seen = 0;
  const auto rank = static_cast<std::size_t>(control.rank());
  require<DataError>(static_cast<int>(saved.progress.samples_seen.size()) == saved.identity.ranks, dir, ": ",
                     saved.progress.samples_seen.size(), " entries in samples_seen, expected one for each of the ",
                     saved.identity.ranks, " ranks");
  if (saved.identity.ranks == control.size()) {
    const auto ranks = static_cast<std::size_t>(control.size());
    std::vector<double> all(ranks * own.size());
    const Shape shape{control.size(), elements};
    read_tensor(file, "rank_buffers", shape, TensorView(std::span<double>(all), shape));
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(rank * own.size()), own.size(), own.begin());
    seen = saved.progress.samples_seen[rank];
  } else {
    // The averages stand in for each rank's own statistics; they weigh as much as what was averaged.
    copy(context, parameters.evaluation_buffer_arena(), TensorView(std::span<double>(own), {elements}));
    context.synchronize();
    for (const double samples : saved.progress.samples_seen) {
      seen += samples / control.size();
    }
  }
  trainer.restore(saved.progress.position, own, seen);
  progress = saved.progress;
  return differences(saved.identity, identity);
}

}  // namespace lockstep::nn
