// Reads lists of pictures. A list has one line for each picture, with the picture's path and label.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

#include <lockstep/nn/data/detail/folder_list.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKind = "list:";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kMostLine = 8192;                       // most bytes of a line; a path has at most 4096
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // most bytes of a list
constexpr std::string_view kExpected = "expected PATH LABEL or PATH,LABEL";

/// A line of a list. `label` points into the list's text.
struct Listed {
  std::string name;
  std::string_view label;
  std::size_t list = 0;
  std::int64_t line = 0;
};

std::string place(const std::string& list, std::int64_t line) {
  return concat(printable(list), ", line ", line);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

/// Divides a line into path and label at the last tab. Without a tab, divides it at the last comma; without tab and
/// comma, at the last space.
std::pair<std::string_view, std::string_view> divided(std::string_view line) {
  for (const char separator : {'\t', ',', ' '}) {
    if (const std::size_t at = line.rfind(separator); at != line.npos) {
      return {trimmed(line.substr(0, at)), trimmed(line.substr(at + 1))};
    }
  }
  return {line, {}};
}

/// Simplifies a path as `find` and other tools print it, so that a file has one name: "./a//b.jpg" and "a/./b.jpg"
/// become a/b.jpg. Keeps "a/../b.jpg", because this path and "b.jpg" name different files if a is a link.
std::string plain_name(std::string_view path) {
  std::string name;
  name.reserve(path.size());
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool begins = name.empty() || name.back() == '/';
    if (begins && path[i] == '.' && i + 1 < path.size() && path[i + 1] == '/') {
      ++i;
    } else if (path[i] != '/' || i == 0 || !begins) {
      name += path[i];
    }
  }
  return name;
}

void add_lines(std::span<const PictureList> lists, std::size_t list,
               const std::function<std::string(const std::string& name)>& problem, std::vector<Listed>& out) {
  const std::string& path = lists[list].path;
  std::string_view rest = lists[list].text;
  rest.remove_prefix(rest.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    // A lambda makes the texts only for an error, because there may be millions of lines.
    const auto refuse = [&](const auto&... what) { throw DataError(concat(place(path, number), ": ", what...)); };
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.size() > kMostLine) {
      refuse(line.size(), " bytes, expected a line of at most ", kMostLine, ": is it a list of pictures?");
    }
    if (line.find('\0') != line.npos) {
      refuse("holds a byte 0, expected text in UTF-8: is it a list of pictures?");
    }
    line.remove_suffix(line.ends_with('\r') ? 1 : 0);
    line = trimmed(line);
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const auto [before, label] = divided(line);
    const std::string picture = plain_name(before);
    if (label.empty() || picture.empty()) {
      refuse(printable(line), label.empty() ? " has no label, " : " has no path, ", kExpected);
    }
    std::string name = picture.starts_with('/') ? std::string() : lists[list].above;
    name += picture;
    if (const std::string wrong = problem(name); !wrong.empty()) {
      refuse(printable(picture), " of label ", printable(label), ' ', wrong,
             " (a line is divided at its last tab, else comma, else space)");
    }
    out.push_back({std::move(name), label, list, number});
  }
}

bool is_number(std::string_view label) {
  label.remove_prefix(label.starts_with('-') || label.starts_with('+') ? 1 : 0);
  return !label.empty() && label.find_first_not_of("0123456789") == label.npos;
}

/// Classes of the training list. Maps each label, a number or a name, to the number of its class.
class Classes {
 public:
  Classes(std::span<const PictureList> lists, std::span<const Listed> train)
      : lists_(lists), first_(train.front()), numbers_(is_number(train.front().label)) {
    std::vector<bool> found;
    if (numbers_) {
      // Each class must have a picture, so there cannot be more classes than pictures.
      size_ = std::min<std::int64_t>(static_cast<std::int64_t>(train.size()), std::numeric_limits<std::int32_t>::max());
      const Listed* largest = nullptr;
      std::int64_t most = -1;
      found.resize(static_cast<std::size_t>(size_));
      for (const Listed& picture : train) {
        const std::int64_t label = of(picture, "as there are so many pictures and each class has one");
        found[static_cast<std::size_t>(label)] = true;
        largest = label > most ? &picture : largest;
        most = std::max(most, label);
      }
      size_ = most + 1;
      const auto missing = std::find(found.begin(), found.begin() + size_, false) - found.begin();
      require<DataError>(missing == size_, place(lists_[0].path, largest->line), ": label ", most, ", and class ",
                         missing, " has no picture in the list, expected one of each class from 0 on");
      return;
    }
    for (const Listed& picture : train) {
      require_kind(picture);
      names_.push_back(picture.label);
    }
    std::sort(names_.begin(), names_.end());
    names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
    size_ = static_cast<std::int64_t>(names_.size());
  }

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::string name(std::int64_t label) const {
    return numbers_ ? std::to_string(label) : std::string(names_[static_cast<std::size_t>(label)]);
  }
  /// Returns the number of the class of `picture`. Throws DataError if no class has the picture's label. `most` is the
  /// part of the error text that says why the label may not be larger.
  [[nodiscard]] std::int64_t of(const Listed& picture, const char* most = "as the training list has them") const {
    require_kind(picture);
    if (!numbers_) {
      const auto found = std::lower_bound(names_.begin(), names_.end(), picture.label);
      if (found == names_.end() || *found != picture.label) {
        throw DataError(concat(of_line(picture), ", expected a class of ", printable(lists_[0].path)));
      }
      return found - names_.begin();
    }
    std::int64_t label = -1;
    const char* const end = picture.label.data() + picture.label.size();
    const auto [stop, error] = std::from_chars(picture.label.data(), end, label);
    if (error != std::errc() || stop != end || label < 0 || label >= size_) {
      throw DataError(concat(of_line(picture), ", expected 0 to ", size_ - 1, ", ", most));
    }
    return label;
  }

 private:
  [[nodiscard]] std::string of_line(const Listed& picture) const {
    return concat(place(lists_[picture.list].path, picture.line), ": label ", printable(picture.label));
  }
  void require_kind(const Listed& picture) const {
    if (is_number(picture.label) != numbers_) {
      throw DataError(concat(of_line(picture), ", expected a ", numbers_ ? "number" : "name", " as ",
                             place(lists_[0].path, first_.line), " has"));
    }
  }

  std::span<const PictureList> lists_;
  const Listed& first_;
  bool numbers_;
  std::int64_t size_ = 0;
  std::vector<std::string_view> names_;
};

/// Throws DataError if a picture has two labels. If `split` is true, also throws DataError if a picture is listed
/// twice, because one of its samples could go to training and the other to the test.
void require_distinct(std::span<const PictureList> lists, std::span<const Listed> pictures, bool split) {
  std::vector<std::size_t> order(pictures.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int names = pictures[a].name.compare(pictures[b].name);
    return names != 0 ? names < 0 : a < b;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Listed& before = pictures[order[i - 1]];
    const Listed& picture = pictures[order[i]];
    if (before.name != picture.name) {
      continue;
    }
    const std::string here = concat(place(lists[picture.list].path, picture.line), ": ", printable(picture.name));
    const std::string there = place(lists[before.list].path, before.line);
    require<DataError>(before.label == picture.label, here, " has label ", printable(picture.label), " and in ", there,
                       ' ', printable(before.label), ", expected the same label in both");
    require<DataError>(!split, here, " stands in ", there,
                       " too, expected each picture once where a fraction is split off");
  }
}

/// Returns the system's reason why `path` cannot be a picture. Returns an empty text if `path` is a regular file.
std::string problem_of(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::not_found) {
    return "does not exist";
  }
  if (type == fs::file_type::none) {
    return concat("cannot be read: ", error.message());
  }
  return type == fs::file_type::regular ? "" : "is no file";
}

/// Returns the relative path from `root` to the folder of `list`. Names with this prefix do not depend on where the
/// root is.
std::string above_of(const fs::path& list, const fs::path& root) {
  const auto real = [](const fs::path& folder) {
    std::error_code error;
    fs::path found = fs::canonical(folder.empty() ? fs::path(".") : folder, error);
    require<FileError>(!error, printable(folder.native()), ": cannot be read: ", error.message(),
                       "; expected a folder that this user may read");
    return found;
  };
  const std::string way = real(list.parent_path()).lexically_relative(real(root)).native();
  return way == "." ? std::string() : way + "/";
}

}  // namespace

bool is_list(const std::string& spec) {
  return spec.starts_with(kKind);
}

std::vector<std::string> paths_of_lists(const std::string& paths) {
  const std::size_t comma = paths.find(',');
  std::vector<std::string> lists{paths.substr(0, comma)};
  if (comma != paths.npos) {
    lists.push_back(paths.substr(comma + 1));
  }
  require<UsageError>(!lists.front().empty() && !lists.back().empty() && lists.back().find(',') == paths.npos,
                      "data is '", kKind, paths,
                      "', expected list:TRAIN or list:TRAIN,VAL: the names of lists have no "
                      "comma in them");
  return lists;
}

FolderList combined_lists(std::span<const PictureList> lists, double val_fraction, std::uint64_t seed,
                          const std::function<std::string(const std::string& name)>& problem) {
  std::vector<Listed> pictures;
  std::size_t train = 0;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::size_t before = pictures.size();
    add_lines(lists, i, problem, pictures);
    require<DataError>(pictures.size() > before, printable(lists[i].path), ": lists no picture, ", kExpected,
                       " on a line");
    train = i == 0 ? pictures.size() : train;
  }
  const Classes classes(lists, std::span(pictures).first(train));
  FolderList list{.classes = static_cast<int>(classes.size())};
  std::vector<std::int32_t> labels;
  std::vector<std::size_t> images(static_cast<std::size_t>(classes.size()));  // number of images of each class
  for (const Listed& picture : pictures) {
    labels.push_back(static_cast<std::int32_t>(classes.of(picture)));
    ++images[static_cast<std::size_t>(labels.back())];
  }
  const bool split = lists.size() == 1;
  require_distinct(lists, pictures, split);
  std::vector<std::vector<bool>> drawn;
  for (std::int32_t label = 0; label < list.classes; ++label) {
    list.names.push_back(classes.name(label));
    drawn.push_back(split ? drawn_for_test(images[static_cast<std::size_t>(label)], val_fraction, seed, label)
                          : std::vector<bool>());
  }
  std::vector<std::size_t> seen(images.size());
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const auto label = static_cast<std::size_t>(labels[i]);
    const bool test = split ? drawn[label][seen[label]++] : i >= train;
    (test ? list.test : list.train).push_back({std::move(pictures[i].name), labels[i]});
  }
  require<DataError>(!list.test.empty(), printable(lists[0].path),
                     ": every class has one image, expected at least two images in a class, one of them for the test");
  list.source = lists[0].path;
  list.about = split ? concat("test images are ", 100 * val_fraction, " % of each class")
                     : concat("test images are those of ", printable(lists[1].path));
  return list;
}

FolderList list_lists(const std::string& paths, double val_fraction, std::uint64_t seed) {
  require_fraction(val_fraction);
  const std::vector<std::string> files = paths_of_lists(paths);
  const bool both = files.size() == 2;
  require<UsageError>(!both || !file_exists(paths), "data is '", kKind, paths,
                      "', a file with a comma in its name, expected a name without: a comma stands between two lists");
  require<UsageError>(both || val_fraction > 0, printable(paths),
                      ": one list, expected list:TRAIN,VAL, or a fraction to split off (--val-fraction)");
  require<UsageError>(!both || val_fraction == 0, "validation fraction is ", val_fraction,
                      ", expected 0 (--val-fraction) with two lists");
  const fs::path root = fs::path(files[0]).parent_path();
  std::vector<PictureList> lists;
  lists.reserve(files.size());
  for (const std::string& file : files) {
    lists.push_back({.path = file, .text = read_file(file, kMostBytes), .above = above_of(file, root)});
  }
  FolderList list = combined_lists(lists, val_fraction, seed,
                                   [&](const std::string& name) { return problem_of(path_of(root.native(), name)); });
  list.root = root.native();
  return list;
}

}  // namespace lockstep::nn::detail
