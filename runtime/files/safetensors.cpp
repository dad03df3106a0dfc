#include <lockstep/runtime/files/safetensors.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data are written as they lie in memory");

constexpr std::uint64_t kMaxHeader = std::uint64_t{16} << 20;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
const char* const kMetadata = "__metadata__";

struct TypeName {
  const char* name;
  unsigned bits;
};
// The types are in the order of the reference implementation's enum. Files store tensors of the last types first.
constexpr std::array kTypes{
    TypeName{"BOOL", 8},    TypeName{"F4", 4},          TypeName{"F6_E2M3", 6},     TypeName{"F6_E3M2", 6},
    TypeName{"U8", 8},      TypeName{"I8", 8},          TypeName{"F8_E5M2", 8},     TypeName{"F8_E4M3", 8},
    TypeName{"F8_E8M0", 8}, TypeName{"F8_E4M3FNUZ", 8}, TypeName{"F8_E5M2FNUZ", 8}, TypeName{"I16", 16},
    TypeName{"U16", 16},    TypeName{"F16", 16},        TypeName{"BF16", 16},       TypeName{"I32", 32},
    TypeName{"U32", 32},    TypeName{"F32", 32},        TypeName{"C64", 64},        TypeName{"F64", 64},
    TypeName{"I64", 64},    TypeName{"U64", 64}};

std::size_t type_index(const std::string& name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) { return name == t.name; });
  return static_cast<std::size_t>(found - kTypes.begin());
}

TensorEntry parse_entry(const std::string& path, const std::string& name, const Json& json) {
  const std::string what = path + ": tensor " + printable(name);
  require_tensor_name(what, name);
  TensorEntry entry;
  entry.name = name;
  entry.dtype = json.get<std::string>("dtype", what);
  const std::size_t type = type_index(entry.dtype);
  require<DataError>(type < kTypes.size(), what, ": dtype ", printable(entry.dtype),
                     ", expected one of the format's, as F32 or I64");

  const Json& shape = json.member("shape", what);
  const Json::Array* extents = shape.if_array();
  require<DataError>(extents != nullptr, what, ": 'shape' is ", shape.kind(), ", expected an array");
  require<DataError>(extents->size() <= kMostTensorDims, what, ": ", extents->size(), " dimensions, expected at most ",
                     kMostTensorDims);
  std::uint64_t elements = 1;
  for (const Json& extent : *extents) {
    const auto n = extent.as<std::uint64_t>(what + ": 'shape'");
    require<DataError>(n <= INT64_MAX && !__builtin_mul_overflow(elements, n, &elements), what,
                       ": shape overflows 64 bits, expected fewer elements");
    entry.shape.push_back(static_cast<std::int64_t>(n));
  }
  std::uint64_t bits = 0;
  require<DataError>(!__builtin_mul_overflow(elements, std::uint64_t{kTypes[type].bits}, &bits), what,
                     ": size in bits overflows 64 bits, expected fewer elements");
  require<DataError>(bits % 8 == 0, what, ": ", bits, " bits, expected a whole number of bytes");

  const Json& offsets = json.member("data_offsets", what);
  const Json::Array* pair = offsets.if_array();
  require<DataError>(pair != nullptr && pair->size() == 2, what, ": 'data_offsets' is ", offsets.kind(),
                     pair != nullptr ? concat(" of length ", pair->size()) : "", ", expected an array of two numbers");
  const auto begin = (*pair)[0].as<std::uint64_t>(what + ": 'data_offsets'");
  const auto end = (*pair)[1].as<std::uint64_t>(what + ": 'data_offsets'");
  require<DataError>(begin <= end, what, ": data from byte ", begin, " to ", end,
                     ", expected the end after the beginning");
  require<DataError>(end - begin == bits / 8, what, ": ", end - begin, " bytes of data, expected ", bits / 8,
                     " for its dtype and shape");
  entry.offset = begin;  // relative to the start of the data; the caller adds the data's offset in the file
  entry.bytes = end - begin;
  return entry;
}

}  // namespace

const char* safetensors_dtype(DType dtype) {
  static constexpr const char* kNames[] = {"F32", "F64", "BF16", "F16", "U8", "I32", "I64", "U64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

SafetensorsFile::SafetensorsFile(const std::string& path) : TensorFile(path, "safetensors") {
  const InputFile& file = this->file();
  require<DataError>(file.size() >= 8, path, ": ", file.size(),
                     " bytes, expected at least 8 for the header length; it is no safetensors file");
  std::array<unsigned char, 8> prefix{};
  file.read(0, std::as_writable_bytes(std::span(prefix)));
  std::uint64_t length = 0;
  for (std::size_t i = prefix.size(); i-- > 0;) {
    length = length << 8 | prefix[i];
  }
  require<DataError>(length <= kMaxHeader, path,
                     ": is no safetensors file, or one with too many tensors: its header would have ", length,
                     " bytes, expected at most ", kMaxHeader);
  require<DataError>(length <= file.size() - 8, path, ": header of ", length, " bytes, expected at most the ",
                     file.size() - 8, " bytes after byte 8; it is no complete safetensors file");
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(8, std::as_writable_bytes(std::span(text)));

  // The first limit is the depth of the JSON: header, object of a tensor, array. The second limit allows 12 values per
  // tensor on average (the object, dtype, two arrays, extents and offsets).
  const Json header = parse_json(text, path + ": header", {3, kMostTensors * 12});
  text = {};
  const Json::Object* object = header.if_object();
  require<DataError>(object != nullptr, path, ": header is ", header.kind(), ", expected an object");
  require<DataError>(object->size() <= kMostTensors + 1, path, ": ", object->size(), " tensors, expected at most ",
                     kMostTensors);
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : *object) {
    if (name != kMetadata) {
      entries.push_back(parse_entry(path, name, value));
      continue;
    }
    const Json::Object* metadata = value.if_object();
    require<DataError>(metadata != nullptr, path, ": __metadata__ is ", value.kind(), ", expected an object");
    for (const auto& [key, entry] : *metadata) {
      texts[key] = entry.as<std::string>(path + ": __metadata__ " + printable(key));
    }
  }

  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  const std::uint64_t data = 8 + length;
  std::uint64_t position = 0;
  for (TensorEntry& entry : entries) {
    require<DataError>(entry.offset == position, path, ": tensor ", printable(entry.name), ": data begin at byte ",
                       entry.offset, ", expected byte ", position, " (no holes, no overlap)");
    position += entry.bytes;  // cannot overflow, because the header contains the end of each tensor as a 64-bit number
    entry.offset += data;
  }
  require<DataError>(position == file.size() - data, path, ": ", file.size() - data, " bytes of data, expected ",
                     position, " from the header");
  set_entries(std::move(entries));
  set_metadata(std::move(texts));
  require_same_size();
}

void write_safetensors(const std::string& path, std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::size_t, const SafetensorsTensor*>> order;
  std::unordered_set<std::string> names;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string what = concat(path, ": tensor ", printable(tensor.name));
    require_tensor_name(what, tensor.name);
    require<DataError>(tensor.name != kMetadata, what, ": is the name of the metadata, expected another name");
    require<DataError>(names.insert(tensor.name).second, path, ": tensor ", printable(tensor.name),
                       " stands twice, expected each name once");
    order.emplace_back(type_index(safetensors_dtype(tensor.dtype)), &tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->name < b.second->name;
  });

  std::string header = "{";
  if (!metadata.empty()) {
    Json::Object values;
    for (const auto& [key, value] : metadata) {
      values[key] = value;
    }
    header += concat('"', kMetadata, "\":", Json(std::move(values)).text());
  }
  std::uint64_t position = 0;
  std::vector<std::uint64_t> sizes;
  for (const auto& [type, tensor] : order) {
    Json::Array shape;
    std::uint64_t bytes = size_of(tensor->dtype);
    for (const std::int64_t extent : tensor->shape) {
      require<DataError>(extent >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes),
                         path, ": tensor ", printable(tensor->name), ": extent is ", extent,
                         ", expected at least 0 and a size below 2^64 bytes");
      shape.emplace_back(extent);
    }
    require<DataError>(tensor->fill != nullptr || tensor->data.size() == bytes, path, ": tensor ",
                       printable(tensor->name), ": ", tensor->data.size(), " bytes of data, expected ", bytes);
    require<DataError>(shape.size() <= kMostTensorDims, path, ": tensor ", printable(tensor->name), ": ", shape.size(),
                       " dimensions, expected at most ", kMostTensorDims);
    if (header.size() > 1) {
      header += ',';
    }
    // Uses std::to_string, because a stream may insert thousands separators according to the host program's locale.
    header += concat(Json(tensor->name).text(), ":{\"dtype\":\"", safetensors_dtype(tensor->dtype),
                     "\",\"shape\":", Json(std::move(shape)).text(), ",\"data_offsets\":[", std::to_string(position),
                     ',', std::to_string(position + bytes), "]}");
    sizes.push_back(bytes);
    position += bytes;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  require<DataError>(header.size() <= kMaxHeader, path, ": header of ", header.size(), " bytes, expected at most ",
                     kMaxHeader);

  std::array<unsigned char, 8> prefix{};
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  }
  OutputFile file(path);
  file.write(std::as_bytes(std::span(prefix)));
  file.write(header);
  std::vector<std::byte> chunk;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const SafetensorsTensor& tensor = *order[i].second;
    if (tensor.fill == nullptr) {
      file.write(tensor.data);
      continue;
    }
    const std::size_t element = size_of(tensor.dtype);
    chunk.resize(kChunkBytes);
    for (std::uint64_t done = 0; done < sizes[i];) {
      const auto out =
          std::span(chunk).first(static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, sizes[i] - done)));
      tensor.fill(static_cast<std::int64_t>(done / element), out);
      file.write(out);
      done += out.size();
    }
  }
  file.finish();
}

}  // namespace lockstep
