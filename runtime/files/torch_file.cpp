#include <lockstep/runtime/files/torch_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/detail/stored_zip.hpp>
#include <lockstep/runtime/files/detail/torch_pickle.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep {

namespace {

using Value = TorchPickle::Value;
using Kind = TorchPickle::Kind;
using namespace std::string_view_literals;

constexpr std::uint64_t kMostPickle = std::uint64_t{16} << 20;
constexpr std::string_view kZip = "PK\x03\x04"sv;
/// First bytes of a file that torch before 1.6 wrote: a pickle of protocol 2 that begins with the number
/// 0x1950a86a20f9469cfc6c.
constexpr std::string_view kOld = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;
constexpr const char* kWhatToDo =
    "; in Python, where you trust the file: safetensors.torch.save_file(STATE_DICT, \"model.safetensors\")";

/// Reads the first kOld.size() bytes of a file, or the whole file if it is shorter.
std::string beginning(const InputFile& file) {
  std::string bytes(static_cast<std::size_t>(std::min<std::uint64_t>(kOld.size(), file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// The records of an archive by their names. The names lack the folder with which all names in the archive begin.
class Records {
 public:
  explicit Records(const InputFile& file) : file_(file), all_(read_zip_directory(file)) {
    std::string folder;
    for (const ZipRecord& record : all_) {
      const std::size_t slash = record.name.find('/');
      if (slash != std::string::npos && std::string_view(record.name).substr(slash) == "/data.pkl"sv) {
        require<DataError>(folder.empty(), file.path(), ": has two records data.pkl, expected one");
        folder = record.name.substr(0, slash + 1);
      }
    }
    for (const ZipRecord& record : all_) {
      require<DataError>(
          folder.empty() || (record.name != folder + "constants.pkl" && !record.name.starts_with(folder + "code/")),
          file.path(), ": TorchScript (torch.jit.save), which holds code, expected torch.save(STATE_DICT)", kWhatToDo);
    }
    require<DataError>(!folder.empty(), file.path(),
                       ": is a zip archive without a record FOLDER/data.pkl, expected a file of torch.save");
    for (const ZipRecord& record : all_) {
      if (record.name.starts_with(folder)) {
        index_[record.name.substr(folder.size())] = &record;
      }
    }
  }
  /// Returns the record called `name`, or nullptr if no record has this name.
  [[nodiscard]] const ZipRecord* find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : found->second;
  }
  /// Returns all bytes of `record` and checks the record's checksum. Throws DataError if the record has more than
  /// `most` bytes.
  [[nodiscard]] std::string text(const ZipRecord& record, std::uint64_t most) const {
    require<DataError>(record.bytes <= most, file_.path(), ": record ", printable(record.name), " has ", record.bytes,
                       " bytes, expected at most ", most);
    require_valid(file_, record);
    std::string bytes(static_cast<std::size_t>(record.bytes), '\0');
    file_.read(record.offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

 private:
  const InputFile& file_;
  std::vector<ZipRecord> all_;
  std::unordered_map<std::string, const ZipRecord*> index_;
};

/// Returns the value of `key` in `dict`, or nullptr if the dict lacks the key. If a key is repeated, its last value
/// counts, as in Python.
const Value* member(const TorchPickle& pickle, const Value& dict, std::string_view key) {
  for (std::size_t i = dict.items.size(); i > 0; i -= 2) {
    const Value& name = pickle[dict.items[i - 2]];
    if (name.kind == Kind::text && name.text == key) {
      return &pickle[dict.items[i - 1]];
    }
  }
  return nullptr;
}

bool has_tensors(const TorchPickle& pickle, const Value& dict) {
  for (std::size_t i = 1; i < dict.items.size(); i += 2) {
    if (pickle[dict.items[i]].kind == Kind::tensor) {
      return true;
    }
  }
  return false;
}

/// Formats the first members of a dict for an error text: "'epoch' (an integer), 'net' (a dict)".
std::string members_text(const TorchPickle& pickle, const Value& dict) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < dict.items.size() && i < 2 * kMost; i += 2) {
    const Value& key = pickle[dict.items[i]];
    text +=
        concat(text.empty() ? "" : ", ", key.kind == Kind::text ? printable(key.text) : TorchPickle::name_of(key.kind),
               " (", TorchPickle::name_of(pickle[dict.items[i + 1]].kind), ')');
  }
  return dict.items.size() > 2 * kMost ? text + ", ..." : text;
}

/// Returns the pickle's dict of tensors: a member of a checkpoint ("state_dict", "model_state_dict" or "model"), or
/// otherwise the whole value. The members are tried first, because a checkpoint may also hold other tensors, such as
/// those of the optimizer.
const Value& state_dict(const TorchPickle& pickle, const std::string& path) {
  const Value& whole = pickle.result();
  require<DataError>(whole.kind == Kind::dict, path, ": holds ", TorchPickle::name_of(whole.kind),
                     ", expected a dict of tensors, as torch.save(model.state_dict(), ...) writes it");
  for (const std::string_view key : {"state_dict"sv, "model_state_dict"sv, "model"sv}) {
    const Value* part = member(pickle, whole, key);
    if (part != nullptr && part->kind == Kind::dict && has_tensors(pickle, *part)) {
      return *part;
    }
  }
  require<DataError>(has_tensors(pickle, whole), path, ": a dict of ",
                     whole.items.empty() ? "nothing" : members_text(pickle, whole),
                     ", expected tensors, or a dict of tensors called state_dict, model_state_dict or model");
  return whole;
}

/// Removes `prefix` from all names if every name begins with it.
void take_off(std::vector<TensorEntry>& entries, std::string_view prefix) {
  const auto begins = [&](const TensorEntry& entry) {
    return entry.name.size() > prefix.size() && entry.name.starts_with(prefix);
  };
  if (!entries.empty() && std::all_of(entries.begin(), entries.end(), begins)) {
    for (TensorEntry& entry : entries) {
      entry.name.erase(0, prefix.size());
    }
  }
}

bool is_row_major(const TorchPickle::Tensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t axis = tensor.shape.size(); axis-- > 0;) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) {
      return tensor.numel == 0;
    }
    expected *= tensor.shape[axis];
  }
  return true;
}

}  // namespace

bool is_torch_file(const std::string& path) {
  const std::string begin = beginning(InputFile(path));
  return begin.starts_with(kZip) || begin == kOld;
}

TorchFile::TorchFile(const std::string& path) : TensorFile(path, "torch") {
  const std::string begin = beginning(file());
  require<DataError>(begin != kOld, path, ": has the form of torch.save before torch 1.6, expected the one since then",
                     kWhatToDo);
  require<DataError>(begin.starts_with(kZip), path,
                     ": does not begin as a zip archive does, expected a file of torch.save");
  const Records records(file());
  if (const ZipRecord* order = records.find("byteorder"); order != nullptr) {
    const std::string text = records.text(*order, 16);
    require<DataError>(text == "little", path, ": bytes in the order ", printable(text), ", expected 'little'");
  }
  const ZipRecord& program = *records.find("data.pkl");
  const TorchPickle pickle(records.text(program, kMostPickle), concat(path, ": ", program.name));
  const Value& dict = state_dict(pickle, path);

  std::vector<TensorEntry> entries;
  std::unordered_set<const ZipRecord*> valid;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const Value& key = pickle[dict.items[i]];
    const Value& value = pickle[dict.items[i + 1]];
    require<DataError>(key.kind == Kind::text, path, ": a dict of tensors with ", TorchPickle::name_of(key.kind),
                       " for a name, expected a text");
    const std::string what = concat(path, ": tensor ", printable(key.text));
    require<DataError>(value.kind == Kind::tensor, what, " is ", TorchPickle::name_of(value.kind),
                       ", expected a tensor as everything else in its dict");
    const TorchPickle::Tensor& tensor = pickle.tensor(static_cast<std::size_t>(value.number));
    const TorchPickle::Storage& storage = pickle.storage(tensor.storage);
    const ZipRecord* record = records.find(concat("data/", storage.key));
    require<DataError>(record != nullptr, what, ": there is no record ", printable(concat("data/", storage.key)),
                       " with its numbers, expected one");
    const std::uint64_t expected = storage.numel * storage.element;  // fits 63 bits, as the pickle's reader has checked
    require<DataError>(record->bytes == expected, what, ": ", record->bytes, " bytes of numbers, expected ", expected,
                       " for ", storage.numel, " of ", storage.dtype);
    if (valid.insert(record).second) {
      require_valid(file(), *record);
    }
    TensorEntry& entry = entries.emplace_back();
    entry.name = key.text;
    entry.dtype = storage.dtype;
    entry.shape = tensor.shape;
    if (!is_row_major(tensor)) {
      entry.strides = tensor.strides;
    }
    entry.offset = record->offset + tensor.offset * storage.element;
    entry.bytes = tensor.numel * storage.element;
  }
  for (const std::string_view prefix : {"module."sv, "_orig_mod."sv, "module."sv}) {
    take_off(entries, prefix);
  }
  for (const TensorEntry& entry : entries) {
    require_tensor_name(concat(path, ": tensor ", printable(entry.name)), entry.name);
  }
  set_entries(std::move(entries));
  require_same_size();
}

}  // namespace lockstep
