// Opens the training and the test set of pictures in a folder or in lists, and finds damaged files.

#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <lockstep/nn/data/detail/ahead.hpp>
#include <lockstep/nn/data/detail/folder_list.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/partition.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {
namespace {

using detail::FolderFile;
using detail::FolderList;

class FolderPictures final : public detail::Pictures {
 public:
  FolderPictures(std::string root, std::vector<FolderFile> files) : root_(std::move(root)), files_(std::move(files)) {}

  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override { return file(index).label; }
  [[nodiscard]] std::string_view name(std::int64_t index) const override { return file(index).name; }
  [[nodiscard]] Opened open(std::int64_t index, std::vector<std::uint8_t>& memory) const override {
    const std::string& name = file(index).name;
    Opened opened{.text = detail::shown(root_, name)};
    opened.header = detail::load_picture(root_, name, opened.text, memory);
    opened.bytes = memory;
    return opened;
  }

 private:
  [[nodiscard]] const FolderFile& file(std::int64_t index) const { return files_[static_cast<std::size_t>(index)]; }

  std::string root_;
  std::vector<FolderFile> files_;
};

/// Decodes the picture `name`. Returns the error text if the picture is damaged, otherwise an empty text.
std::string damage_of(const std::string& root, const std::string& name) {
  thread_local std::vector<std::uint8_t> file;
  thread_local images::Picture picture;
  const std::string text = detail::shown(root, name);
  std::string damage = detail::damage_in([&] {
    const images::Header header = detail::load_picture(root, name, text, file);
    images::decode(file, text, header, 8, picture);  // decodes the whole file; shrink = 8 takes the least time
  });
  detail::keep_little(picture.pixels);
  return damage;
}

/// Removes all but the first of files with equal names, because a list may name a picture several times.
void keep_first_of_each(std::vector<FolderFile>& files) {
  std::unordered_set<std::string> names;
  std::erase_if(files, [&](const FolderFile& file) { return !names.insert(file.name).second; });
}

}  // namespace

std::string detail::path_of(const std::string& root, const std::string& name) {
  return root.empty() || name.starts_with('/') ? name : concat(root, '/', name);
}

std::string detail::shown(const std::string& root, const std::string& name) {
  constexpr std::size_t kShown = 200;  // length of the longest text that printable() does not shorten
  const std::string path = path_of(root, name);
  return printable(path.size() <= kShown ? path : name);
}

images::Header detail::load_picture(const std::string& root, const std::string& name, const std::string& text,
                                    std::vector<std::uint8_t>& bytes) {
  const InputFile file(path_of(root, name));
  require<DataError>(file.size() <= images::kMaxFileBytes, text, ": has ", file.size(), " bytes, expected at most ",
                     images::kMaxFileBytes);
  bytes.resize(static_cast<std::size_t>(file.size()));
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return images::read_header(bytes, text);
}

DataSplit detail::open_pictures(const std::string& spec, const FolderOptions& given, std::uint64_t seed) {
  require_decoders(spec);
  const FolderOptions options = resolved(given);
  FolderList list = list_pictures(spec, options.val_fraction, seed);
  leave_out(list, options.left_out, list.source);
  const auto images_of = [&](const char* part, std::vector<FolderFile>& files, bool random) {
    return std::make_unique<PictureImages>(concat(spec, part),
                                           std::make_unique<FolderPictures>(list.root, std::move(files)), list.classes,
                                           options, seed, random);
  };
  DataSplit split;
  auto train = images_of(" train", list.train, options.random_crops);
  split.about = concat(list.about, ", ", text_of(options), train->enlarged_text());
  split.train = std::move(train);
  split.test = images_of(" test", list.test, false);
  split.statistics = imagenet_statistics();
  split.class_names = std::move(list.names);
  split.files = true;
  return split;
}

std::vector<DamagedImage> damaged_images(const DataOptions& options, int parts, int part, int threads) {
  require<UsageError>(options.spec.starts_with("folder:") || detail::is_list(options.spec), "damaged images: data is '",
                      options.spec, "', expected folder:DIR or list:FILE");
  require<UsageError>(threads >= 1, "damaged images: threads is ", threads, ", expected at least 1");
  detail::require_decoders(options.spec);
  FolderList list = detail::list_pictures(options.spec, detail::resolved(options.folder).val_fraction, options.seed);
  std::vector<FolderFile> files = std::move(list.train);
  files.insert(files.end(), std::make_move_iterator(list.test.begin()), std::make_move_iterator(list.test.end()));
  keep_first_of_each(files);
  const Partition share = partition_of(static_cast<std::int64_t>(files.size()), parts, part);
  const auto name_of = [&](std::int64_t i) -> const std::string& {
    return files[static_cast<std::size_t>(share.begin + i)].name;
  };
  detail::Ahead<std::string> texts(share.count, threads,
                                   [&](std::int64_t i) { return damage_of(list.root, name_of(i)); });
  std::vector<DamagedImage> damaged;
  for (std::int64_t i = 0; i < share.count; ++i) {
    if (const std::string text = texts.take(); !text.empty()) {
      damaged.push_back({name_of(i), text});
    }
  }
  return damaged;
}

}  // namespace lockstep::nn
