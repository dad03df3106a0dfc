#include <lockstep/nn/model/detail/tensor_pieces.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

namespace {

std::vector<std::int64_t> extents(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

/// Memory on the host that holds one tensor at a time. Strides and types are converted on the host, so one
/// implementation serves all devices.
class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}

  /// Copies a piece to the host and returns the logical view of the copy. finish(piece) copies the host memory back to
  /// the piece.
  TensorView begin(const Piece& piece) {
    bytes_.resize(piece.stored.bytes());
    copy_now(context_of(piece), piece.stored, host_view(piece));
    TensorView logical = piece.logical;
    logical.data = bytes_.data();
    logical.device = Device::cpu();
    return logical;
  }
  void finish(const Piece& piece) { copy_now(context_of(piece), host_view(piece), piece.stored); }

 private:
  /// Returns a host context if the piece is in host memory (for example, a state that rank 0 has collected from all
  /// ranks). Otherwise returns the context of the device.
  Context& context_of(const Piece& piece) { return piece.stored.device == Device::cpu() ? host_ : context_; }
  TensorView host_view(const Piece& piece) {
    return {bytes_.data(), piece.stored.dtype, Device::cpu(), piece.stored.shape};
  }
  Context& context_;
  CpuContext host_{{.threads = 1}};
  std::vector<std::byte> bytes_;
};

}  // namespace

void add_parameter_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena,
                          const std::string& suffix) {
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const ParameterInfo& info = parameters.parameters()[i];
    if (info.offset >= arena.numel()) {
      break;  // this parameter and all after it are frozen, so they have no states
    }
    pieces.push_back({.name = info.spec.name + suffix,
                      .shape = info.spec.shape,
                      .stored = arena.slice(0, info.offset, info.offset + info.numel),
                      .logical = parameters.logical(static_cast<int>(i), arena)});
  }
}

void add_buffer_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const TensorView& arena) {
  for (std::size_t i = 0; i < parameters.buffers().size(); ++i) {
    const TensorView stored = parameters.buffer_in(static_cast<int>(i), arena);
    pieces.push_back({.name = parameters.buffers()[i].name,
                      .shape = parameters.buffers()[i].shape,
                      .stored = stored,
                      .logical = parameters.logical_buffer(static_cast<int>(i), stored)});
  }
}

void add_state_pieces(std::vector<Piece>& pieces, const ParameterSet& parameters, const State& state,
                      const TensorView& arena) {
  if (state.layout == StateLayout::parameters) {
    add_parameter_pieces(pieces, parameters, arena, state.saved_as);
  } else {
    add_buffer_pieces(pieces, parameters, arena);
  }
}

void write_pieces(const std::string& path, Context& context, const std::vector<Piece>& pieces,
                  std::vector<SafetensorsTensor> more, const std::map<std::string, std::string>& metadata) {
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
  std::map<std::string, std::string> all = metadata;
  all["format"] = "pt";
  write_safetensors(path, tensors, all);
}

std::string shape_text(const TensorEntry& entry) {
  std::string text = "(";
  for (const std::int64_t extent : entry.shape) {
    text += concat(text.size() > 1 ? ", " : "", extent);
  }
  return text + ")";
}

/// Returns a text like "; the nearest is 'x' of shape ..." for an error about the missing tensor `name`. The nearest
/// tensor is the tensor of the file whose name ends with `name`; if there is none, the tensor with the most similar
/// name.
std::string nearest_text(const TensorFile& file, const std::string& name) {
  const TensorEntry* nearest = nullptr;
  std::size_t least = std::string::npos;
  for (const TensorEntry& entry : file.entries()) {
    const std::size_t away = entry.name.ends_with("." + name) ? 0 : 1 + edit_distance(entry.name, name);
    if (away < least) {
      nearest = &entry;
      least = away;
    }
  }
  return nearest == nullptr ? ""
                            : concat("; the nearest is ", printable(nearest->name), " of shape ", shape_text(*nearest));
}

const TensorEntry& entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    throw DataError(concat(file.path(), ": there is no tensor '", name, "', expected one of shape ", shape,
                           "; the file is of another ", of, nearest_text(file, name)));
  }
  if (entry->shape != extents(shape)) {
    throw DataError(concat(file.path(), ": tensor '", name, "' has shape ", shape_text(*entry), ", expected ", shape,
                           "; the file is of another ", of));
  }
  return *entry;
}

const TensorEntry& floating_entry_of(const TensorFile& file, const std::string& name, const Shape& shape, FileOf of) {
  const TensorEntry& entry = entry_of(file, name, shape, of);
  require<DataError>(entry.type().has_value() && is_floating(*entry.type()), file.path(), ": tensor '", name, "' is ",
                     entry.dtype, ", expected F32, F64, F16 or BF16");
  return entry;
}

void read_entry(const TensorFile& file, const TensorEntry& entry, const TensorView& target) {
  std::vector<std::byte> bytes(entry.bytes);
  file.read(entry, bytes);
  CpuContext host({.threads = 1});
  copy(host, TensorView(bytes.data(), *entry.type(), Device::cpu(), target.shape), target);
}

void require_pieces(const TensorFile& file, const std::vector<Piece>& pieces, FileOf of) {
  for (const Piece& piece : pieces) {
    static_cast<void>(floating_entry_of(file, piece.name, piece.shape, of));
  }
}

void read_pieces(const TensorFile& file, Context& context, const std::vector<Piece>& pieces) {
  Staging staging(context);
  for (const Piece& piece : pieces) {
    read_entry(file, *file.find(piece.name), staging.begin(piece));  // begin() copied the padding, so finish() keeps it
    staging.finish(piece);
  }
}

}  // namespace lockstep::nn
