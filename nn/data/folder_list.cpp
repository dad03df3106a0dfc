// Lists the images in folders of classes, and divides them into training and test sets.

#include <lockstep/nn/data/detail/folder_list.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn::detail {
namespace {

namespace fs = std::filesystem;

/// Returns the entries of a folder, sorted by the bytes of their names. Names that begin with a dot are left out.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().native().starts_with('.')) {
      found.push_back(*at);
    }
  }
  require<FileError>(!error, printable(folder.native()), ": cannot be read: ", error.message(),
                     "; expected a folder that this user may read");
  std::sort(found.begin(), found.end(), [](const fs::directory_entry& a, const fs::directory_entry& b) {
    return a.path().native() < b.path().native();
  });
  return found;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code error;
  const fs::file_type type = entry.status(error).type();
  require<DataError>(type != fs::file_type::not_found, printable(entry.path().native()),
                     ": is a link to nothing, expected one to a file or a folder");
  require<FileError>(type != fs::file_type::none, printable(entry.path().native()),
                     ": cannot be read: ", error.message(), "; expected a file that this user may read");
  return type == fs::file_type::directory;
}

bool is_image(const fs::path& path) {
  std::string extension = path.extension().native();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

bool holds(const fs::path& outer, const fs::path& inner) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Appends the images in `folder` and in the folders below it to `images`. Follows links. Throws DataError for a link
/// to a folder that contains the link. `open` holds the folders that are being read, outermost first.
void add_images(const fs::path& folder, std::vector<fs::path>& open, std::vector<fs::path>& images) {
  std::error_code error;
  open.push_back(fs::canonical(folder, error));
  require<FileError>(!error, printable(folder.native()), ": cannot be read: ", error.message(),
                     "; expected a folder that this user may read");
  for (auto other = open.begin(); other + 1 != open.end(); ++other) {
    require<DataError>(
        !holds(open.back(), *other), printable(folder.native()),
        ": is a link to a folder that it lies in, which would be read without end; expected no such link");
  }
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (is_folder(entry)) {
      add_images(entry.path(), open, images);
    } else if (is_image(entry.path())) {
      images.push_back(entry.path());
    }
  }
  open.pop_back();
}

/// Returns the classes in the folder `part` of `root`, sorted by the bytes of their names. Each class has the names of
/// its images relative to `root`, in the order of their bytes.
std::vector<std::pair<std::string, std::vector<std::string>>> classes_in(const fs::path& root, const fs::path& part) {
  std::vector<std::pair<std::string, std::vector<std::string>>> classes;
  const fs::path top = part.empty() ? root : root / part;
  for (const fs::directory_entry& entry : entries_of(top)) {
    if (!is_folder(entry)) {
      continue;
    }
    std::vector<fs::path> open;
    std::vector<fs::path> images;
    add_images(entry.path(), open, images);
    require<DataError>(!images.empty(), printable(entry.path().native()),
                       ": a class without images, expected files *.jpg, *.jpeg or *.png");
    std::vector<std::string>& names =
        classes.emplace_back(entry.path().filename().native(), std::vector<std::string>()).second;
    for (const fs::path& image : images) {
      names.push_back(image.lexically_relative(root).native());
    }
    std::sort(names.begin(), names.end());
  }
  require<DataError>(!classes.empty(), printable(top.native()),
                     ": no classes, expected a folder of images for each class");
  return classes;
}

FolderList split_classes(const fs::path& root, const fs::path& part, double fraction, std::uint64_t seed) {
  FolderList list;
  for (auto& [name, images] : classes_in(root, part)) {
    const std::int32_t label = list.classes++;
    list.names.push_back(name);
    const std::vector<bool> test = drawn_for_test(images.size(), fraction, seed, label);
    for (std::size_t i = 0; i < images.size(); ++i) {
      (test[i] ? list.test : list.train).push_back({std::move(images[i]), label});
    }
  }
  require<DataError>(!list.test.empty(), printable(root.native()),
                     ": every class has one image, expected at least two images in a class, one of them for the test");
  list.about = concat("test images are ", 100 * fraction, " % of each class");
  return list;
}

FolderList given_parts(const fs::path& root, const char* test_part) {
  FolderList list;
  auto train = classes_in(root, "train");
  auto test = classes_in(root, test_part);
  for (std::size_t i = 0; i < std::max(train.size(), test.size()); ++i) {
    const bool same = i < train.size() && i < test.size() && train[i].first == test[i].first;
    // The lists `train` and `test` are sorted. If two names differ, the class with the smaller name is missing in the
    // other list.
    const bool only_train = !same && i < train.size() && (i == test.size() || train[i].first < test[i].first);
    require<DataError>(same, printable(root.native()), ": class ",
                       printable(same ? "" : (only_train ? train : test)[i].first), " is in ",
                       only_train ? "train" : test_part, " and not in ", only_train ? test_part : "train",
                       ", expected the same classes in both");
    for (std::string& image : train[i].second) {
      list.train.push_back({std::move(image), list.classes});
    }
    for (std::string& image : test[i].second) {
      list.test.push_back({std::move(image), list.classes});
    }
    ++list.classes;
    list.names.push_back(train[i].first);
  }
  list.about = concat("test images are those of ", test_part);
  return list;
}

}  // namespace

std::vector<bool> drawn_for_test(std::size_t images, double fraction, std::uint64_t seed, std::int32_t label) {
  const auto rounded = static_cast<std::size_t>(std::llround(fraction * static_cast<double>(images)));
  const std::size_t count = images < 2 ? 0 : std::clamp<std::size_t>(rounded, 1, images - 1);
  std::vector<std::size_t> order(images);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<bool> test(images);
  // The last argument is 1, which no Permutation passes. So no shuffle uses the same random numbers.
  Random random(seed, RandomUse::shuffle, static_cast<std::uint64_t>(label), 1);
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(order[i], order[i + random.below(static_cast<std::uint32_t>(images - i))]);
    test[order[i]] = true;
  }
  return test;
}

void require_fraction(double val_fraction) {
  require<UsageError>(val_fraction >= 0 && val_fraction < 1, "validation fraction is ", val_fraction,
                      ", expected 0 <= value < 1");
}

FolderList list_pictures(const std::string& spec, double val_fraction, std::uint64_t seed) {
  const std::string where = spec.substr(spec.find(':') + 1);
  return is_list(spec) ? list_lists(where, val_fraction, seed) : list_folder(where, val_fraction, seed);
}

FolderList list_folder(const std::string& folder, double val_fraction, std::uint64_t seed) {
  const fs::path root(folder);
  const auto has = [&](const char* part) {
    std::error_code ignored;
    return fs::is_directory(part[0] == '\0' ? root : root / part, ignored);
  };
  require_fraction(val_fraction);
  require<DataError>(has(""), printable(folder), ": is no folder, expected a folder of images");
  const char* test_part = has("val") ? "val" : "test";
  const bool train = has("train");
  const bool both = train && has(test_part);
  require<UsageError>(both || val_fraction > 0, printable(folder), ": has no folder ", train ? "val or test" : "train",
                      ", expected train and one of val and test in it, or a fraction to split off (--val-fraction)");
  require<UsageError>(!both || val_fraction == 0, "validation fraction is ", val_fraction,
                      ", expected 0 (--val-fraction), as ", printable(folder), " has a folder ", test_part);
  FolderList list = both ? given_parts(root, test_part)
                         : split_classes(root, train ? fs::path("train") : fs::path(), val_fraction, seed);
  list.root = list.source = folder;
  return list;
}

void leave_out(FolderList& list, const std::vector<std::string>& left_out, const std::string& source) {
  std::vector<std::string> names = left_out;
  std::sort(names.begin(), names.end());
  for (std::vector<FolderFile>* part : {&list.train, &list.test}) {
    std::erase_if(*part,
                  [&](const FolderFile& file) { return std::binary_search(names.begin(), names.end(), file.name); });
  }
  std::vector<bool> trained(static_cast<std::size_t>(list.classes));
  for (const FolderFile& file : list.train) {
    trained[static_cast<std::size_t>(file.label)] = true;
  }
  const auto without = std::find(trained.begin(), trained.end(), false);
  require<DataError>(without == trained.end() && !list.test.empty(), printable(source), ": without ", names.size(),
                     " images that are left out, ",
                     list.test.empty() ? "nothing remains for the test"
                                       : concat("nothing remains of class ", without - trained.begin()),
                     "; expected at least one image there");
}

}  // namespace lockstep::nn::detail
