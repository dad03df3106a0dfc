// The input has a byte of flags, the first list (a 16-bit length and that number of bytes) and the second list. If bit
// 0 of the flags is set, both lists are read. Otherwise the first list is split into training and test images. A name
// with an exclamation mark stands for a file that is no picture.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <lockstep/nn/data/detail/folder_list.hpp>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

using nn::detail::FolderFile;
using nn::detail::FolderList;

FolderList read(const std::vector<std::string>& texts, double fraction) {
  std::vector<nn::detail::PictureList> lists;
  for (const std::string& text : texts) {
    lists.push_back({.path = "list", .text = text, .above = ""});
  }
  return nn::detail::combined_lists(lists, fraction, 1, [](const std::string& name) {
    return name.find('!') == name.npos ? std::string() : std::string("does not exist");
  });
}

/// Counts the lines that are neither empty nor comments.
std::size_t lines_in(const std::string& text) {
  const std::string mark = "\xEF\xBB\xBF";
  const std::string rest = text.substr(text.starts_with(mark) ? mark.size() : 0);
  std::size_t count = 0;
  for (std::string line : lines_of({reinterpret_cast<const std::uint8_t*>(rest.data()), rest.size()})) {
    line.resize(line.size() - (line.ends_with('\r') ? 1 : 0));
    const std::size_t first = line.find_first_not_of(" \t");
    count += first != line.npos && line[first] != '#' ? 1 : 0;
  }
  return count;
}

/// Writes the list again in its plainest form: a path, a tab and the name of the class in each line.
std::string written(const std::vector<FolderFile>& files, const std::vector<std::string>& names) {
  std::string text;
  for (const FolderFile& file : files) {
    text += (file.name.starts_with('/') ? "" : "./") + file.name + '\t' + names[static_cast<std::size_t>(file.label)] +
            "\r\n";
  }
  return text;
}

bool same(const std::vector<FolderFile>& a, const std::vector<FolderFile>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const FolderFile& x, const FolderFile& y) { return x.name == y.name && x.label == y.label; });
}

}  // namespace

void lists(Input input) {
  Cursor cursor(input);
  const bool two = (cursor.byte() & 1) != 0;
  std::vector<std::string> texts{text_of(cursor.piece())};
  std::size_t lines = lines_in(texts[0]);
  if (two) {
    texts.push_back(text_of(cursor.rest()));
    lines += lines_in(texts[1]);
  }
  FolderList list;
  if (!accepts<DataError>([&] { list = read(texts, two ? 0 : 0.4); })) {
    return;
  }
  check(list.train.size() + list.test.size() == lines && !list.test.empty(), list.train.size(), " and ",
        list.test.size(), " pictures of ", lines, " lines");
  const auto classes = static_cast<std::size_t>(list.classes);
  check(list.names.size() == classes, list.names.size(), " names of ", classes, " classes");
  std::vector<std::size_t> trained(classes);
  std::vector<std::size_t> tested(classes);
  for (const auto& [files, counts] : {std::pair(&list.train, &trained), std::pair(&list.test, &tested)}) {
    for (const FolderFile& file : *files) {
      check(file.label >= 0 && static_cast<std::size_t>(file.label) < classes, "label ", file.label);
      check(!file.name.empty() && file.name.find('!') == file.name.npos, "a name that is no picture");
      ++(*counts)[static_cast<std::size_t>(file.label)];
    }
  }
  for (std::size_t label = 0; label < classes; ++label) {
    check(trained[label] > 0, "class ", label, " has no picture");
    check(two || trained[label] == 1 || tested[label] > 0, "nothing is split off class ", label);
  }
  const bool short_names = std::all_of(list.train.begin(), list.train.end(), [&](const FolderFile& file) {
    return file.name.size() + list.names[static_cast<std::size_t>(file.label)].size() < 8000;
  });
  if (two && short_names) {
    FolderList again;
    const bool read_again = accepts<DataError>([&] {
      again = read({written(list.train, list.names), written(list.test, list.names)}, 0);
    });
    check(read_again && same(again.train, list.train) && same(again.test, list.test) && again.names == list.names,
          "differs when it is read again");
  }
}

}  // namespace lockstep::fuzz
