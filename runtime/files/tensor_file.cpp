#include <lockstep/runtime/files/tensor_file.hpp>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/files/torch_file.hpp>

namespace lockstep {

namespace {

/// Copies the elements of a strided tensor to `to` in row-major order. `element` is the size of an element in bytes.
/// `from` points to the element with the lowest address.
void gather(const TensorEntry& entry, std::size_t element, const std::byte* from, std::byte* to) {
  const std::size_t axes = entry.shape.size();
  std::vector<std::int64_t> index(axes, 0);
  std::int64_t at = 0;
  for (std::uint64_t done = 0; done < entry.bytes; done += element) {
    std::memcpy(to + done, from + static_cast<std::size_t>(at) * element, element);
    for (std::size_t axis = axes; axis-- > 0;) {
      at += entry.strides[axis];
      if (++index[axis] < entry.shape[axis]) {
        break;
      }
      at -= entry.strides[axis] * std::exchange(index[axis], 0);
    }
  }
}

}  // namespace

std::optional<DType> TensorEntry::type() const {
  for (const DType known :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32, DType::i64, DType::u64}) {
    if (dtype == safetensors_dtype(known)) {
      return known;
    }
  }
  return std::nullopt;
}

struct TensorFile::Impl {
  Impl(const std::string& path, const char* format_name) : file(path), format(format_name) {}
  InputFile file;
  const char* format;
  std::vector<TensorEntry> entries;
  std::unordered_map<std::string, std::size_t> index;
  std::map<std::string, std::string> metadata;
};

TensorFile::TensorFile(const std::string& path, const char* format) : impl_(std::make_unique<Impl>(path, format)) {}
TensorFile::~TensorFile() = default;
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;

const std::string& TensorFile::path() const {
  return impl_->file.path();
}
const char* TensorFile::format() const {
  return impl_->format;
}
const std::vector<TensorEntry>& TensorFile::entries() const {
  return impl_->entries;
}
const std::map<std::string, std::string>& TensorFile::metadata() const {
  return impl_->metadata;
}
const InputFile& TensorFile::file() const {
  return impl_->file;
}

const TensorEntry* TensorFile::find(const std::string& name) const {
  const auto found = impl_->index.find(name);
  return found == impl_->index.end() ? nullptr : &impl_->entries[found->second];
}

void TensorFile::set_entries(std::vector<TensorEntry> entries) {
  impl_->index.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    require<DataError>(impl_->index.emplace(entries[i].name, i).second, path(), ": tensor ", printable(entries[i].name),
                       " stands twice, expected each name once");
  }
  impl_->entries = std::move(entries);
}

void TensorFile::set_metadata(std::map<std::string, std::string> metadata) {
  impl_->metadata = std::move(metadata);
}

void TensorFile::require_same_size() const {
  require<DataError>(file().current_size() == file().size(), path(),
                     ": changes its size while it is read, expected a file that nobody writes");
}

void TensorFile::read(const TensorEntry& entry, std::span<std::byte> out, std::uint64_t begin) const {
  require<DataError>(begin <= entry.bytes && out.size() <= entry.bytes - begin, path(), ": tensor ",
                     printable(entry.name), ": bytes ", begin, " to ", begin + out.size(), ", expected within ",
                     entry.bytes);
  if (entry.strides.empty() || out.empty()) {
    file().read(entry.offset + begin, out);
    return;
  }
  std::uint64_t count = 1;
  std::uint64_t last = 0;
  for (std::size_t axis = 0; axis < entry.shape.size(); ++axis) {
    count *= static_cast<std::uint64_t>(entry.shape[axis]);
    last += static_cast<std::uint64_t>((entry.shape[axis] - 1) * entry.strides[axis]);
  }
  const auto element = static_cast<std::size_t>(entry.bytes / count);
  std::vector<std::byte> from(static_cast<std::size_t>(last + 1) * element);
  file().read(entry.offset, from);
  if (out.size() == entry.bytes) {
    gather(entry, element, from.data(), out.data());
    return;
  }
  std::vector<std::byte> whole(static_cast<std::size_t>(entry.bytes));
  gather(entry, element, from.data(), whole.data());
  std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
}

TensorFile open_tensor_file(const std::string& path) {
  if (is_torch_file(path)) {
    return TorchFile(path);
  }
  return SafetensorsFile(path);
}

void require_tensor_name(const std::string& what, const std::string& name) {
  constexpr std::size_t kMostBytes = 1024;
  require<DataError>(!name.empty() && name.size() <= kMostBytes, what, ": name of ", name.size(),
                     " bytes, expected 1 to ", kMostBytes, " bytes");
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t length = printable_length(rest);
    require<DataError>(length > 0, what, ": name of ", name.size(),
                       " bytes, expected no control characters and valid UTF-8");
    rest.remove_prefix(length);
  }
}

}  // namespace lockstep
