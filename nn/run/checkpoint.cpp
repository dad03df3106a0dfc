#include <lockstep/nn/run/checkpoint.hpp>

#include <cstddef>
#include <span>
#include <utility>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

constexpr const char* kStateFile = "state.json";
constexpr std::int64_t kFormat = 1;

<<<<<<< HEAD
std::vector<std::int64_t> extents(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

/// A tensor of the run and its form in a file.
struct Piece {
  std::string name;
  Shape shape;         ///< in the file
  TensorView stored;   ///< contiguous, padding included
  TensorView logical;  ///< in the same memory: axes in the order of the file, no padding
};

/// The parameters, as they lie in `arena`, each name followed by `suffix`.
void add_arena(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena,
               const std::string& suffix) {
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const ParameterInfo& info = parameters.parameters()[i];
    pieces.push_back({.name = info.spec.name + suffix,
                      .shape = info.spec.shape,
                      .stored = arena.slice(0, info.offset, info.offset + info.numel),
                      .logical = parameters.logical(static_cast<int>(i), arena)});
  }
}

/// Parameters and averaged statistics.
std::vector<Piece> model_pieces(const ParameterSet& parameters) {
  std::vector<Piece> pieces;
  add_arena(pieces, parameters, parameters.values(), "");
  for (std::size_t i = 0; i < parameters.buffers().size(); ++i) {
    const TensorView stored = parameters.evaluation_buffer(static_cast<int>(i));
    pieces.push_back({.name = parameters.buffers()[i].name,
                      .shape = parameters.buffers()[i].shape,
                      .stored = stored,
                      .logical = parameters.logical_buffer(static_cast<int>(i), stored)});
  }
  return pieces;
}

/// Optimizer state as "<parameter>.<state>".
std::vector<Piece> state_pieces(const ParameterSet& parameters) {
  std::vector<Piece> pieces;
  for (const std::string& name : parameters.state_names()) {
    add_arena(pieces, parameters, parameters.state(name), "." + name);
  }
  return pieces;
}

/// One tensor at a time on the host, where strides and types are converted for every device alike.
class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}

  /// Copies a piece to the host and returns its logical view there; finish() with the same piece copies it back.
  TensorView begin(const Piece& piece) {
    bytes_.resize(piece.stored.bytes());
    copy(context_, piece.stored, host_view(piece));
    context_.synchronize();
    TensorView logical = piece.logical;
    logical.data = bytes_.data();
    logical.device = Device::cpu();
    return logical;
  }
  void finish(const Piece& piece) {
    copy(context_, host_view(piece), piece.stored);
    context_.synchronize();
  }

 private:
  TensorView host_view(const Piece& piece) {
    return {bytes_.data(), piece.stored.dtype, Device::cpu(), piece.stored.shape};
  }
  Context& context_;
  std::vector<std::byte> bytes_;
};

/// Writes the pieces, and `more` tensors that are on the host, with one piece at a time in host memory.
void write_pieces(const std::string& path, Context& context, const std::vector<Piece>& pieces,
                  std::vector<SafetensorsTensor> more = {}) {
  Staging staging(context);
  CpuContext host({.threads = 1});
  std::vector<std::byte> row_major;
  std::vector<SafetensorsTensor> tensors = std::move(more);
  for (const Piece& piece : pieces) {
    const auto fill = [&](std::int64_t first, std::span<std::byte> out) {
      if (first == 0) {
        const TensorView logical = staging.begin(piece);
        row_major.resize(logical.bytes());
        copy(host, logical, TensorView(row_major.data(), logical.dtype, Device::cpu(), logical.shape));
      }
      const auto begin = static_cast<std::size_t>(first) * size_of(piece.stored.dtype);
      std::copy_n(row_major.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    };
    tensors.push_back(
        {.name = piece.name, .dtype = piece.stored.dtype, .shape = extents(piece.shape), .data = {}, .fill = fill});
  }
  write_safetensors(path, tensors, {{"format", "pt"}});
}

/// The tensor of a file that has this shape.
const SafetensorsEntry& entry_of(const SafetensorsFile& file, const std::string& name, const Shape& shape) {
  const char* other = file.path().ends_with(kOptimizerFile) ? "; the checkpoint is of another model or optimizer"
                                                            : "; the checkpoint is of another model";
  const SafetensorsEntry* entry = file.find(name);
  require<DataError>(entry != nullptr, file.path(), ": there is no tensor '", name, "'", other);
  require<DataError>(
      entry->shape == extents(shape), file.path(), ": tensor '", name, "' has shape ",
      Shape(std::span<const std::int64_t>(entry->shape.data(), std::min<std::size_t>(entry->shape.size(), 8))),
      ", expected ", shape, other);
  return *entry;
}

/// ... and a floating type.
const SafetensorsEntry& checked_entry(const SafetensorsFile& file, const std::string& name, const Shape& shape) {
  const SafetensorsEntry* entry = &entry_of(file, name, shape);
  require<DataError>(entry->type().has_value() && is_floating(*entry->type()), file.path(), ": tensor '", name, "' is ",
                     entry->dtype, ", expected F32, F64, F16 or BF16");
  return *entry;
}

/// Reads one tensor of a file into a strided host view, converting its type.
void read_tensor(const SafetensorsFile& file, const std::string& name, const Shape& shape, const TensorView& target) {
  const SafetensorsEntry& entry = checked_entry(file, name, shape);
  std::vector<std::byte> bytes(entry.bytes);
  file.read(entry, bytes);
  CpuContext host({.threads = 1});
  copy(host, TensorView(bytes.data(), *entry.type(), Device::cpu(), target.shape), target);
}

/// Reads the pieces with one at a time in host memory. Nothing is changed before all of them are found to fit.
void read_pieces(const SafetensorsFile& file, Context& context, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    (void)checked_entry(file, piece.name, piece.shape);
  }
  Staging staging(context);
  for (const Piece& piece : pieces) {
    read_tensor(file, piece.name, piece.shape, staging.begin(piece));  // the padding stays
    staging.finish(piece);
  }
}

/// The optimizer's counts, in the order of counter_names().
std::vector<std::int64_t> counters_of(Context& context, const ParameterSet& parameters) {
  const std::vector<std::string> names = parameters.counter_names();
  std::vector<std::int64_t> counts(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    copy(context, parameters.counter(names[i]), TensorView(std::span(counts).subspan(i, 1), {1}));
  }
  context.synchronize();
  return counts;
}

std::int64_t count_of(const SafetensorsFile& file, const std::string& name) {
  const Shape one{1};  // g++ 14 takes the entry for a part of a temporary
  const SafetensorsEntry& entry = entry_of(file, name, one);
  std::array<std::int64_t, 1> count{};
  require<DataError>(entry.type() == DType::i64, file.path(), ": tensor '", name, "' is ", entry.dtype,
                     ", expected I64");
  file.read(entry, std::as_writable_bytes(std::span(count)));
  require<DataError>(count[0] >= 0, file.path(), ": tensor '", name, "' holds ", count[0],
                     ", expected a count of at least 0");
  return count[0];
}

void read_counters(const SafetensorsFile& file, Context& context, const ParameterSet& parameters) {
  for (const std::string& name : parameters.counter_names()) {
    std::int64_t count = count_of(file, name);
    copy(context, TensorView(std::span(&count, 1), {1}), parameters.counter(name));
    context.synchronize();
  }
}

/// Names of the dynamic loss scale and its count in the optimizer's file.
constexpr const char* kLossScale = "loss_scale";
constexpr const char* kLossScaleGood = "loss_scale_good";

/// A dynamic loss scale and its count, on the host.
struct LossScaleState {
  double scale = 0;
  std::int64_t good = 0;
};

LossScaleState loss_scale_of(Context& context, const ParameterSet& parameters) {
  LossScaleState state;
  copy(context, parameters.loss_scale(), TensorView(std::span(&state.scale, 1), Shape{}));
  copy(context, parameters.loss_scale_good(), TensorView(std::span(&state.good, 1), Shape{}));
  context.synchronize();
  return state;
}

/// A checkpoint of a run without one leaves it as it began.
void read_loss_scale(const SafetensorsFile& file, Context& context, const ParameterSet& parameters) {
  if (!parameters.dynamic_loss_scale() || file.find(kLossScale) == nullptr) {
    return;
  }
  LossScaleState state;
  read_tensor(file, kLossScale, {1}, TensorView(std::span(&state.scale, 1), {1}));
  require<DataError>(state.scale > 0 && state.scale <= 3e38, file.path(), ": tensor '", kLossScale, "' holds ",
                     state.scale, ", expected a positive number");
  state.good = count_of(file, kLossScaleGood);
  copy(context, TensorView(std::span(&state.scale, 1), Shape{}), parameters.loss_scale());
  copy(context, TensorView(std::span(&state.good, 1), Shape{}), parameters.loss_scale_good());
  context.synchronize();
}

=======
>>>>>>> 2530162
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
  identity.ranks = json.get<int>("ranks", source);
  identity.threads = json.get<int>("threads", source);
  require<DataError>(identity.ranks >= 1 && identity.threads >= 1, source, ": ranks ", identity.ranks, ", threads ",
                     identity.threads, ", expected at least 1 of each");
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
      const Json::Object& members_now = *other.if_object();
      Json::Object names = *members;
      names.insert(members_now.begin(), members_now.end());
      const auto text_in = [](const Json::Object& object, const std::string& name) {
        const auto found = object.find(name);
        return found == object.end() ? std::string("nothing") : found->second.text();
      };
      for (const auto& [name, unused] : names) {
        const std::string before = text_in(*members, name);
        const std::string text_now = text_in(members_now, name);
        if (before != text_now) {
          text += concat(key, " '", name, "': checkpoint ", before, ", now ", text_now, '\n');
        }
      }
    } else {
      text += concat(key, ": checkpoint ", value.text(), ", now ", other.text(), '\n');
    }
  }
  return text;
}

}  // namespace

RunIdentity identity_of(const Trainer& trainer) {
  RunIdentity identity;
  identity.model = trainer.train_plan().layout().model;
  identity.seed = trainer.options().seed;
  identity.ranks = trainer.ranks();
  identity.global_batch = trainer.options().global_batch;
  identity.options = option_texts(trainer.options(), trainer.data());
  identity.choices = trainer.choices();
  for (const comm::Bucket& bucket : trainer.reducer().buckets()) {
    identity.buckets.push_back(bucket.last);
  }
  return identity;
}

bool choices_hold(const RunIdentity& saved, const RunIdentity& now) {
  const auto same = [&](const std::string& option) {
    const auto before = saved.options.find(option);
    const auto after = now.options.find(option);
    const bool given = before != saved.options.end();
    return given == (after != now.options.end()) && (!given || before->second == after->second);
  };
  return saved.ranks == now.ranks && saved.global_batch == now.global_batch && same("dtype") && same("tf32") &&
         same("accumulate") && same("device");
}

void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress) {
  trainer.reduce_buffers();
  trainer.train_step().synchronize();  // before a copy, which does not look after the communicator
  const Json::Array seen(progress.samples_seen.begin(), progress.samples_seen.end());
  const Json state = Json::Object{{"format", kFormat},
                                  {"identity", to_json(identity)},
                                  {"epoch", progress.position.epoch},
                                  {"batch", progress.position.batch},
                                  {"step", progress.position.step},
                                  {"best_accuracy", progress.best_accuracy},
                                  {"test_accuracy", progress.test_accuracy},
                                  {"samples_seen", seen}};
  trainer.doing(control.rank() == 0 ? "writing the checkpoint after step"
                                    : "waiting for rank 0's checkpoint after step");
  save_state(dir, trainer.context(), trainer.parameters(), control, {.files = {{kStateFile, state.text(2) + "\n"}}});
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
    require<DataError>(state.progress.samples_seen.back() >= 0, path, ": samples_seen holds ",
                       state.progress.samples_seen.back(), ", expected none negative");
  }
  const Position& at = state.progress.position;
  require<DataError>(at.epoch >= 0 && at.batch >= 0 && at.step >= 0, path, ": epoch ", at.epoch, ", batch ", at.batch,
                     ", step ", at.step, ", expected none negative");
  return state;
}

std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                              const RunIdentity& identity, RunProgress& progress) {
  const CheckpointState saved = read_checkpoint_state(dir);
  const Position& at = saved.progress.position;
  require<DataError>(at.batch < trainer.batches_per_epoch(), existing_folder(dir), "/", kStateFile, ": epoch ",
                     at.epoch, ", batch ", at.batch, ", but this run has ", trainer.batches_per_epoch(),
                     " batches an epoch");
  const auto optimizer_of = [](const RunIdentity& run) {
    const auto found = run.options.find("optimizer");
    return found == run.options.end() ? std::string() : found->second;
  };
  const std::string written_by = optimizer_of(saved.identity);
  const std::string wanted = optimizer_of(identity);
  require<DataError>(written_by.empty() || wanted.empty() || written_by == wanted, existing_folder(dir),
                     ": the state of optimizer ", written_by, ", expected ", wanted);
  ParameterSet& parameters = trainer.parameters();
  Context& context = trainer.context();
  require<DataError>(static_cast<int>(saved.progress.samples_seen.size()) == saved.identity.ranks, dir, ": ",
                     saved.progress.samples_seen.size(), " entries in samples_seen, expected one for each of the ",
                     saved.identity.ranks, " ranks");
  static_cast<void>(load_state(dir, context, parameters, control, saved.identity.ranks));
  double seen = 0;
  if (saved.identity.ranks == control.size()) {
    seen = saved.progress.samples_seen[static_cast<std::size_t>(control.rank())];
  } else {  // the averages weigh as much as what was averaged
    for (const double samples : saved.progress.samples_seen) {
      seen += samples / control.size();
    }
  }
  const std::int64_t elements = parameters.buffer_arena().numel();
  std::vector<double> own(static_cast<std::size_t>(elements));
  copy_now(context, parameters.buffer_arena(), TensorView(std::span<double>(own), {elements}));
  trainer.restore(saved.progress.position, own, seen);
  progress = saved.progress;
  return differences(saved.identity, identity);
}

RunProgress resume_if_there(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                            const RunIdentity& identity, std::string* differences) {
  const bool here = control.rank() == 0 && !find_folder(dir).empty();
  RunProgress progress;
  if (comm::all_gather_value(control, here ? 1 : 0).front() != 0) {
    std::string differing = resume_checkpoint(dir, trainer, control, identity, progress);
    if (differences != nullptr) {
      *differences = std::move(differing);
    }
    trainer.require_same_state();
  }
  return progress;
}

}  // namespace lockstep::nn
