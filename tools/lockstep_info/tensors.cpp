#include "tools/lockstep_info/tensors.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <type_traits>
#include <utility>

#include <lockstep/nn/model/checkpoint_files.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/half.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep::tools {
namespace {

template <class T>
void add_numbers(const std::vector<std::byte>& bytes, TensorFacts& facts) {
  std::int64_t finite = 0;
  double sum = 0;
  double least = 0;
  double most = 0;
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, bytes.data() + at, sizeof element);
    double value = 0;
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      value = static_cast<double>(static_cast<float>(element));
    } else {
      value = static_cast<double>(element);
    }
    if (std::isfinite(value)) {
      least = finite == 0 ? value : std::min(least, value);
      most = finite == 0 ? value : std::max(most, value);
      sum += value;
      ++finite;
    }
  }
  facts.non_finite = facts.values - finite;
  if (finite > 0) {
    facts.least = least;
    facts.most = most;
    facts.mean = sum / static_cast<double>(finite);
  }
}

/// Calls add_numbers() with the C++ type for a name of safetensors; does nothing for types that cannot be read.
void add_numbers(const std::string& dtype, const std::vector<std::byte>& bytes, TensorFacts& facts) {
  struct Reader {
    const char* dtype;
    void (*read)(const std::vector<std::byte>&, TensorFacts&);
  };
  static constexpr std::array kReaders{
      Reader{"F32", add_numbers<float>},         Reader{"F64", add_numbers<double>},
      Reader{"F16", add_numbers<Float16>},       Reader{"BF16", add_numbers<BFloat16>},
      Reader{"I64", add_numbers<std::int64_t>},  Reader{"U64", add_numbers<std::uint64_t>},
      Reader{"I32", add_numbers<std::int32_t>},  Reader{"U32", add_numbers<std::uint32_t>},
      Reader{"I16", add_numbers<std::int16_t>},  Reader{"U16", add_numbers<std::uint16_t>},
      Reader{"I8", add_numbers<std::int8_t>},    Reader{"U8", add_numbers<std::uint8_t>},
      Reader{"BOOL", add_numbers<std::uint8_t>},
  };
  const auto* reader =
      std::find_if(kReaders.begin(), kReaders.end(), [&](const Reader& each) { return dtype == each.dtype; });
  if (reader != kReaders.end()) {
    reader->read(bytes, facts);
  }
}

/// Returns true if the name `a` comes before the name `b`. Compares numbers in names by value: "layer2.9" comes before
/// "layer2.10".
bool comes_first(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto take = [&](const std::string& text, std::size_t& at) {
        const std::size_t begin = std::min(text.find_first_not_of('0', at), text.size());
        at = begin;
        while (at < text.size() && digit(text[at])) {
          ++at;
        }
        return std::pair(at - begin, text.substr(begin, at - begin));
      };
      const auto left = take(a, i);
      const auto right = take(b, j);
      if (left != right) {
        return left < right;
      }
      continue;
    }
    if (a[i] != b[j]) {
      return a[i] < b[j];
    }
    ++i;
    ++j;
  }
  return i == a.size() && j < b.size();
}

FileFacts facts_of(const std::string& path) {
  const TensorFile file = open_tensor_file(path);
  FileFacts facts{.path = path, .format = file.format(), .metadata = file.metadata()};
  for (const TensorEntry& entry : file.entries()) {
    TensorFacts& tensor = facts.tensors.emplace_back();
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    std::uint64_t values = 1;
    for (const std::int64_t extent : entry.shape) {
      values *= static_cast<std::uint64_t>(extent);  // overflows only if another extent is 0; the product is then 0
    }
    tensor.values = static_cast<std::int64_t>(values);
    tensor.bytes = entry.bytes;
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes));
    file.read(entry, bytes);
    add_numbers(entry.dtype, bytes, tensor);
  }
  std::sort(facts.tensors.begin(), facts.tensors.end(),
            [](const TensorFacts& a, const TensorFacts& b) { return comes_first(a.name, b.name); });
  return facts;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (const std::int64_t extent : shape) {
    text += concat(text.size() > 1 ? ", " : "", extent);
  }
  return text + ")";
}

std::string number_text(std::optional<double> value) {
  std::ostringstream text;
  if (value) {
    text << std::setprecision(4) << *value;
  }
  return value ? text.str() : "-";
}

struct Totals {
  std::int64_t values = 0;
  std::uint64_t bytes = 0;
  std::int64_t non_finite = 0;
};

Totals totals_of(const FileFacts& file) {
  Totals totals;
  for (const TensorFacts& tensor : file.tensors) {
    totals.values += tensor.values;
    totals.bytes += tensor.bytes;
    totals.non_finite += tensor.non_finite.value_or(0);
  }
  return totals;
}

Json json_of(std::optional<double> value) {
  return value ? Json(*value) : Json();
}

/// Returns the library choices in a run's config.json as the metadata of a file without tensors.
FileFacts choices_of_run(const std::string& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  FileFacts file{.path = path, .format = "run"};
  const Json config = parse_json(read_file(path, kMostBytes), path);
  if (!config.has("library_choices") || config.member("library_choices", path).is_null()) {
    file.metadata["library choices"] = "none was timed";
    return file;
  }
  const Json choices = config.member("library_choices", path);
  const auto refused = choices.get<Json::Array>("refused", path);
  file.metadata["library choices"] =
      concat(choices.get<int>("calls", path), " calls of ", choices.get<int>("distinct", path), " kinds, ",
             choices.get<int>("timed", path), " timed in ", choices.get<double>("seconds", path), " s, ",
             refused.size(), " candidates refused");
  for (std::size_t i = 0; i < refused.size(); ++i) {
    std::ostringstream number;
    number << "refused " << std::setw(4) << std::setfill('0') << i + 1;
    file.metadata[number.str()] = refused[i].as<std::string>(path);
  }
  return file;
}

}  // namespace

std::vector<FileFacts> read_tensors(const std::string& path) {
  std::error_code none;
  const std::string folder = std::filesystem::is_directory(path, none) ? path : find_folder(path);
  if (folder.empty()) {
    return {facts_of(path)};
  }
  if (!file_exists(folder + "/" + nn::kModelFile) && file_exists(folder + "/config.json")) {
    return {choices_of_run(folder + "/config.json")};
  }
  require<FileError>(file_exists(folder + "/" + nn::kModelFile), folder, ": a folder without ", nn::kModelFile,
                     ", expected a checkpoint, a run's folder, or a file of tensors");
  nn::require_checksums(folder);
  std::vector<FileFacts> files;
  for (const char* name : {nn::kModelFile, nn::kOptimizerFile}) {
    if (file_exists(folder + "/" + name)) {
      files.push_back(facts_of(folder + "/" + name));
    }
  }
  return files;
}

std::string tensor_report(const std::vector<FileFacts>& files) {
  std::ostringstream out;
  for (const FileFacts& file : files) {
    const Totals totals = totals_of(file);
    out << (&file == files.data() ? "" : "\n") << file.path << ": " << file.format << ", " << file.tensors.size()
        << (file.tensors.size() == 1 ? " tensor, " : " tensors, ") << totals.values << " values, "
        << bytes_text(static_cast<double>(totals.bytes)) << ", " << totals.non_finite << " not finite\n";
    for (const auto& [key, value] : file.metadata) {
      out << "  " << printable(key) << " = " << printable(value) << '\n';
    }
    if (file.tensors.empty()) {
      continue;
    }
    std::vector<std::vector<std::string>> rows{{"name", "type", "shape", "min", "max", "mean", "not finite"}};
    for (const TensorFacts& tensor : file.tensors) {
      rows.push_back({tensor.name, tensor.dtype, shape_text(tensor.shape), number_text(tensor.least),
                      number_text(tensor.most), number_text(tensor.mean),
                      tensor.non_finite ? std::to_string(*tensor.non_finite) : "-"});
    }
    std::vector<std::size_t> widths(rows[0].size(), 0);
    for (const std::vector<std::string>& row : rows) {
      for (std::size_t column = 0; column < row.size(); ++column) {
        widths[column] = std::max(widths[column], row[column].size());
      }
    }
    constexpr std::size_t kTexts = 3;  // the first three columns are aligned on the left
    for (const std::vector<std::string>& row : rows) {
      std::string line;
      for (std::size_t column = 0; column < row.size(); ++column) {
        const std::string space(widths[column] - row[column].size(), ' ');
        line += concat("  ", column < kTexts ? row[column] + space : space + row[column]);
      }
      out << line << '\n';
    }
  }
  return out.str();
}

Json tensor_json(const std::vector<FileFacts>& files) {
  Json::Array array;
  for (const FileFacts& file : files) {
    const Totals totals = totals_of(file);
    Json::Array tensors;
    for (const TensorFacts& tensor : file.tensors) {
      tensors.emplace_back(Json::Object{{"name", tensor.name},
                                        {"dtype", tensor.dtype},
                                        {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                                        {"values", tensor.values},
                                        {"bytes", tensor.bytes},
                                        {"min", json_of(tensor.least)},
                                        {"max", json_of(tensor.most)},
                                        {"mean", json_of(tensor.mean)},
                                        {"non_finite", tensor.non_finite ? Json(*tensor.non_finite) : Json()}});
    }
    array.emplace_back(Json::Object{{"path", file.path},
                                    {"format", file.format},
                                    {"metadata", Json::Object(file.metadata.begin(), file.metadata.end())},
                                    {"values", totals.values},
                                    {"bytes", totals.bytes},
                                    {"non_finite", totals.non_finite},
                                    {"tensors", std::move(tensors)}});
  }
  return array;
}

}  // namespace lockstep::tools
