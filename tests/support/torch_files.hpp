#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/runtime/files/tensor_file.hpp>

/// Makes the files that torch.save writes, byte by byte, so that a test can also make files that torch.save would not
/// write. A file is a zip archive with a pickle; the functions below return the bytes of the pickle's operations.
namespace lockstep::testing::torch {

using Bytes = std::string;

inline Bytes little(std::uint64_t value, int count) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) {
    bytes += static_cast<char>(value >> (8 * i));
  }
  return bytes;
}

/// Computes the CRC-32 checksum of zip files, bit by bit.
inline std::uint32_t crc32(const Bytes& bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
    }
  }
  return ~crc;
}

struct Record {
  std::string name;
  Bytes data;
  unsigned method = 0;
  unsigned flags = 0;
};

/// Makes a zip archive. zip64: with all numbers in 64 bits, as torch writes files of more than 4 GiB.
inline Bytes zip(const std::vector<Record>& records, bool zip64 = false) {
  Bytes file;
  Bytes directory;
  for (const Record& record : records) {
    const std::uint64_t header = file.size();
    const std::uint64_t size = record.data.size();
    const Bytes middle = little(20, 2) + little(record.flags, 2) + little(record.method, 2) + little(0, 4) +
                         little(crc32(record.data), 4);
    // Like torch, pads the header with an extra field, so that the record's data begin at a multiple of 64 bytes.
    const std::size_t data = file.size() + 30 + record.name.size() + 4;
    const std::size_t fill = (64 - data % 64) % 64;
    const Bytes padding = little(0x4246, 2) + little(fill, 2) + Bytes(fill, 'Z');
    file += "PK\x03\x04" + middle + little(size, 4) + little(size, 4) + little(record.name.size(), 2) +
            little(padding.size(), 2) + record.name + padding + record.data;
    const std::uint64_t in64 = 0xffffffffU;
    const Bytes extra = zip64 ? little(9, 2) + little(1, 2) + "x" + little(1, 2) + little(24, 2) + little(size, 8) +
                                    little(size, 8) + little(header, 8)
                              : "";
    directory += "PK\x01\x02" + little(20, 2) + middle + little(zip64 ? in64 : size, 4) +
                 little(zip64 ? in64 : size, 4) + little(record.name.size(), 2) + little(extra.size(), 2) +
                 little(0, 2) + little(0, 2) + little(0, 2) + little(0, 4) + little(zip64 ? in64 : header, 4) +
                 record.name + extra;
  }
  const std::uint64_t begin = file.size();
  const std::uint64_t count = records.size();
  file += directory;
  if (zip64) {
    const std::uint64_t end = file.size();
    file += "PK\x06\x06" + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 4) + little(0, 4) +
            little(count, 8) + little(count, 8) + little(directory.size(), 8) + little(begin, 8);
    file += "PK\x06\x07" + little(0, 4) + little(end, 8) + little(1, 4);
  }
  const std::uint64_t many = 0xffff;
  return file + "PK\x05\x06" + little(0, 4) + little(zip64 ? many : count, 2) + little(zip64 ? many : count, 2) +
         little(zip64 ? 0xffffffffU : directory.size(), 4) + little(zip64 ? 0xffffffffU : begin, 4) + little(0, 2);
}

// ---- operations of pickle

inline Bytes text(const std::string& value) {
  return "X" + little(value.size(), 4) + value;
}
inline Bytes integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    return "K" + little(static_cast<std::uint64_t>(value), 1);
  }
  if (value >= INT32_MIN && value <= INT32_MAX) {
    return "J" + little(static_cast<std::uint64_t>(value), 4);
  }
  return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8);
}
inline Bytes global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline Bytes tuple(const std::vector<Bytes>& items) {
  Bytes bytes = "(";
  for (const Bytes& item : items) {
    bytes += item;
  }
  return bytes + "t";
}
inline Bytes tuple(const std::vector<std::int64_t>& numbers) {
  std::vector<Bytes> items;
  for (const std::int64_t number : numbers) {
    items.push_back(integer(number));
  }
  return tuple(items);
}
inline Bytes call(const Bytes& function, const Bytes& arguments) {
  return function + arguments + "R";
}
/// Returns a dict with texts as keys.
inline Bytes dict(const std::vector<std::pair<std::string, Bytes>>& items) {
  Bytes bytes = "}(";
  for (const auto& [key, value] : items) {
    bytes += text(key) + value;
  }
  return bytes + "u";
}
inline Bytes ordered_dict() {
  return call(global("collections", "OrderedDict"), ")");
}
/// Returns a dict as state_dict() makes it, with the versions of layers in the attribute _metadata.
inline Bytes state_dict(const std::vector<std::pair<std::string, Bytes>>& items) {
  return ordered_dict() + dict(items).substr(1) + dict({{"_metadata", ordered_dict()}}) + "b";
}
inline Bytes storage(const std::string& type, const std::string& key, std::int64_t numel) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), integer(numel)}) + "Q";
}
inline Bytes tensor(const Bytes& storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tuple({storage, integer(offset), tuple(shape), tuple(strides), "\x89", ordered_dict()}));
}
inline Bytes parameter(const Bytes& tensor) {
  return call(global("torch._utils", "_rebuild_parameter"), tuple({tensor, "\x88", ordered_dict()}));
}
inline Bytes program(const Bytes& value) {
  return "\x80\x02" + value + ".";
}

/// A tensor with its own storage.
struct Plain {
  std::string name;
  std::string type;  ///< "Float", "Long", ...
  std::vector<std::int64_t> shape;
  Bytes data;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

/// Returns the records of a file that holds a pickle and the storages "0", "1", ...
inline std::vector<Record> records(const Bytes& pickle, const std::vector<Bytes>& storages) {
  std::vector<Record> all{{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i) {
    all.push_back({"archive/data/" + std::to_string(i), storages[i]});
  }
  all.push_back({"archive/version", "3\n"});
  all.push_back({"archive/.data/serialization_id", "0636457737946401051300000026"});
  return all;
}

/// Makes the file that torch.save(state_dict) writes. wrap: puts the dict into another object.
template <class Wrap>
Bytes file_of(const std::vector<Plain>& tensors, Wrap wrap) {
  std::vector<std::pair<std::string, Bytes>> items;
  std::vector<Bytes> storages;
  for (const Plain& each : tensors) {
    std::vector<std::int64_t> strides(each.shape.size());
    std::int64_t numel = 1;
    for (std::size_t axis = each.shape.size(); axis-- > 0;) {
      strides[axis] = numel;
      numel *= each.shape[axis];
    }
    items.emplace_back(each.name, tensor(storage(each.type + "Storage", std::to_string(storages.size()), numel), 0,
                                         each.shape, strides));
    storages.push_back(each.data);
  }
  return zip(records(program(wrap(state_dict(items))), storages));
}
inline Bytes file_of(const std::vector<Plain>& tensors) {
  return file_of(tensors, [](const Bytes& dict) { return dict; });
}

/// Makes the file that torch.save({"epoch": 3, "state_dict": ...}) writes for the f32 tensors of the file at `path`.
/// `prefix` is put before the tensors' names.
inline Bytes copy_of(const std::string& path, const std::string& prefix = "") {
  const TensorFile file = open_tensor_file(path);
  std::vector<Plain> tensors;
  for (const TensorEntry& entry : file.entries()) {
    Plain& plain = tensors.emplace_back(Plain{prefix + entry.name, "Float", entry.shape, Bytes(entry.bytes, '\0')});
    file.read(entry, std::as_writable_bytes(std::span(plain.data)));
  }
  return file_of(tensors, [](const Bytes& dict) { return torch::dict({{"epoch", integer(3)}, {"state_dict", dict}}); });
}

}  // namespace lockstep::testing::torch
