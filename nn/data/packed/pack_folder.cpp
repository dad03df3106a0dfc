#include <lockstep/nn/data/packed/pack_folder.hpp>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <lockstep/nn/data/detail/ahead.hpp>
#include <lockstep/nn/data/detail/folder_list.hpp>
#include <lockstep/nn/data/detail/packed_frame.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostResize = 8192;

/// A picture in the form in which the packed file stores it.
struct Prepared {
  PackedSample sample{};
  std::vector<std::uint8_t> bytes{};
  bool resized = false;
  std::string damage{};
  [[nodiscard]] std::size_t held() const { return bytes.size(); }
};

/// Resizes a picture, without a crop, to a shorter side of `shorter` pixels. The filter weights are those of
/// centre_crop(). So an evaluation of the packed file uses the same pixels as an evaluation of the original picture
/// with resize = `shorter`.
void resize_to(std::int64_t shorter, const images::Picture& picture, const images::Header& header,
               images::ResampleMemory& memory, Prepared& out) {
  const std::int64_t least = std::min(header.width, header.height);
  const auto extent = [&](std::int64_t side) { return shorter * side / least; };
  const auto axis = [&](std::int64_t side, std::int64_t decoded) {
    const double step = static_cast<double>(side) / static_cast<double>(extent(side));
    return detail::shrunk({0, step, 0, side}, picture.shrink, decoded);
  };
  const images::Extent size{extent(header.width), extent(header.height)};
  out.bytes.resize(static_cast<std::size_t>(size.width * size.height * 3));
  images::resample(images::view_of(picture), axis(header.width, picture.width), axis(header.height, picture.height),
                   size, false, memory, out.bytes);
  out.sample.width = size.width;
  out.sample.height = size.height;
  out.resized = true;
}

/// Reads and decodes the file `name`. If the file is damaged, the field `damage` of the result has the error text.
Prepared prepare(const PackOptions& options, const std::string& root, const std::string& name, std::int32_t label) {
  thread_local images::Picture picture;
  thread_local images::ResampleMemory memory;
  Prepared made;
  const std::string text = detail::shown(root, name);
  made.damage = detail::damage_in([&] {
    const images::Header header = detail::load_picture(root, name, text, made.bytes);
    made.sample = {label, header.width, header.height, header.orientation, header.format == images::Format::jpeg, name};
    if (options.store == PackedStore::files) {
      images::decode(made.bytes, text, header, 8, picture);  // decodes the whole file; shrink = 8 takes the least time
    } else if (const std::int64_t shorter = std::min(header.width, header.height);
               options.resize > 0 && shorter > options.resize) {
      const double step = static_cast<double>(shorter) / static_cast<double>(options.resize);
      images::decode(made.bytes, text, header, detail::shrink_for(step, step), picture);
      resize_to(options.resize, picture, header, memory, made);
    } else {
      images::decode(made.bytes, text, header, 1, picture);
      made.bytes.assign(picture.pixels.begin(), picture.pixels.end());
    }
  });
  detail::keep_little(picture.pixels);
  detail::keep_little(memory.rows);
  return made;
}

}  // namespace

void detail::require_pack_output(const std::string& file, const std::string& source, bool overwrite) {
  const fs::path out(file);
  std::error_code error;
  require<UsageError>(!file.empty() && out.has_filename() && !fs::is_directory(out, error), printable(file),
                      ": is a folder, expected a file to write");
  require<UsageError>(overwrite || !fs::exists(out, error), printable(file),
                      ": exists, expected no such file, or that it may be replaced (--overwrite)");
  if (is_list(source)) {  // the output may be in the folder of a list, so this check compares only paths of lists
    for (const std::string& list : paths_of_lists(source.substr(source.find(':') + 1))) {
      require<UsageError>(!fs::equivalent(out, list, error), printable(file),
                          ": is a list of pictures, expected another file to write");
    }
    return;
  }
  const fs::path above = fs::canonical(out.has_parent_path() ? out.parent_path() : fs::path("."), error);
  require<FileError>(!error, printable(file), ": cannot be made: ", error.message(),
                     "; expected a folder that this user may write");
  const fs::path from = fs::canonical(source, error);
  require<FileError>(!error, printable(source), ": cannot be read: ", error.message(),
                     "; expected a source that this user may read");
  require<UsageError>(from != above / out.filename(), printable(file),
                      ": is the source that is packed, expected another file");
  require<UsageError>(std::mismatch(from.begin(), from.end(), above.begin(), above.end()).first != from.end(),
                      printable(file), ": lies in ", printable(source), ", expected a place outside");
}

FolderPack::FolderPack(PackOptions options) : options_(std::move(options)) {
  const std::string spec = detail::is_list(options_.folder) ? options_.folder : "folder:" + options_.folder;
  detail::require_decoders(spec);
  require<UsageError>(options_.resize == 0 || options_.store == PackedStore::pixels, "resize is ", options_.resize,
                      " with stored files, expected stored pixels (--store pixels)");
  require<UsageError>(options_.resize >= 0 && options_.resize <= kMostResize, "resize is ", options_.resize,
                      ", expected 0 to ", kMostResize);
  detail::require_threads(options_.threads);
  detail::FolderList list = detail::list_pictures(spec, options_.val_fraction, options_.seed);
  detail::require_pack_output(options_.out, options_.folder, options_.overwrite);
  root_ = std::move(list.root);
  source_ = std::move(list.source);
  class_names_ = std::move(list.names);
  about_ = std::move(list.about);
  train_ = static_cast<std::int64_t>(list.train.size());
  constexpr std::int64_t kBeforeEpochs = -1;  // epoch of the packing order; not an epoch of training
  const Permutation order(options_.seed, kBeforeEpochs, train_);
  for (std::int64_t i = 0; i < train_; ++i) {
    detail::FolderFile& file = list.train[static_cast<std::size_t>(options_.shuffle ? order(i) : i)];
    files_.emplace_back(std::move(file.name), file.label);
  }
  for (detail::FolderFile& file : list.test) {
    files_.emplace_back(std::move(file.name), file.label);
  }
  if (std::error_code error; detail::is_list(options_.folder) && fs::exists(options_.out, error)) {
    for (const auto& [name, label] : files_) {  // the list may name the output file itself as a picture
      require<UsageError>(!fs::equivalent(options_.out, detail::path_of(root_, name), error), printable(options_.out),
                          ": is a picture of the list, expected another file to write");
    }
  }
}

PackSummary FolderPack::write(const std::function<void(const PackProgress&)>& report) const {
  PackSummary summary;
  PackedWriter writer(options_.out, options_.store, class_names_, options_.resize);
  const auto all = static_cast<std::int64_t>(files_.size());
  detail::Ahead<Prepared> pictures(all, options_.threads, [this](std::int64_t i) {
    const auto& [name, label] = files_[static_cast<std::size_t>(i)];
    return prepare(options_, root_, name, label);
  });
  detail::FolderList packed{.classes = static_cast<int>(class_names_.size())};
  for (std::int64_t i = 0; i < all; ++i) {
    const Prepared made = pictures.take();
    const auto& [name, label] = files_[static_cast<std::size_t>(i)];
    if (made.damage.empty()) {
      writer.add(i >= train_, made.sample, made.bytes);
      (i < train_ ? packed.train : packed.test).push_back({{}, label});
      summary.resized += made.resized ? 1 : 0;
    } else {
      require<DataError>(options_.skip_damaged, made.damage, " (damaged images can be left out: --skip-damaged)");
      summary.damaged.push_back({name, made.damage});
    }
    report({i + 1, all, writer.bytes()});
  }
  std::vector<std::string> names;
  for (const DamagedImage& image : summary.damaged) {
    names.push_back(image.file);
  }
  detail::leave_out(packed, names, source_);  // throws if a class or the test set has no images left
  writer.commit();
  summary.train = static_cast<std::int64_t>(packed.train.size());
  summary.test = static_cast<std::int64_t>(packed.test.size());
  summary.bytes = writer.bytes();
  return summary;
}

}  // namespace lockstep::nn
