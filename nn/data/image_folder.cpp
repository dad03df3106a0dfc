// Pictures in folders: how a picture becomes an image, and which are damaged.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <lockstep/nn/data/detail/folder_list.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/images/crop.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/images/resample.hpp>
#include <lockstep/nn/data/partition.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {
namespace {

using detail::FolderFile;
using detail::FolderList;

constexpr std::int64_t kMostSide = 4096;
// Of ImageNet's training set, as torchvision's models use them.
constexpr ChannelStatistics kImageNet{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};

/// What a thread keeps between pictures.
struct Scratch {
  std::vector<std::uint8_t> file;
  images::Picture picture;
  images::ResampleMemory resample;
};

/// A large picture does not keep its memory.
template <class T>
void keep_little(std::vector<T>& memory) {
  constexpr std::size_t kMostKept = std::size_t{1} << 25;
  if (memory.capacity() * sizeof(T) > kMostKept) {
    std::vector<T>().swap(memory);
  }
}

std::string shown(const std::string& folder, const std::string& name) {
  constexpr std::size_t kShown = 200;  // of printable()
  const std::string path = folder + "/" + name;
  return printable(path.size() <= kShown ? path : name);
}

/// Reads a file and what its beginning says.
images::Header load(const std::string& folder, const std::string& name, const std::string& text,
                    std::vector<std::uint8_t>& bytes) {
  const InputFile file(folder + "/" + name);
  require<DataError>(file.size() <= images::kMaxFileBytes, text, ": ", file.size(), " bytes, expected at most ",
                     images::kMaxFileBytes);
  bytes.resize(static_cast<std::size_t>(file.size()));
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return images::read_header(bytes, text);
}

/// The greatest shrink that leaves two pixels of the picture to one of the image.
int shrink_for(const images::View& view) {
  const double step = std::min(std::abs(view.x.step), std::abs(view.y.step));
  int shrink = 1;
  while (shrink < 8 && step >= 4 * shrink) {
    shrink *= 2;
  }
  return shrink;
}

/// An axis of a picture that was decoded smaller, to `extent` pixels.
images::Axis shrunk(const images::Axis& axis, int shrink, std::int64_t extent) {
  return {axis.begin / shrink, axis.step / shrink, axis.low / shrink,
          std::min((axis.high + shrink - 1) / shrink, extent)};
}

class FolderImages final : public ImageDataset {
 public:
  FolderImages(const std::string& name, std::string folder, std::vector<FolderFile> files, int classes,
               const FolderOptions& options, std::uint64_t seed, bool random)
      : ImageDataset({name, static_cast<std::int64_t>(files.size()), options.image_size, options.image_size, classes}),
        folder_(std::move(folder)),
        files_(std::move(files)),
        resize_(options.resize),
        crop_(options.crop),
        seed_(seed),
        random_(random),
        flip_(options.flip) {
    detail::Hash hash;
    for (const std::int64_t number :
         {height(), resize_, std::int64_t{classes}, std::int64_t{random_}, std::int64_t{random_ && flip_}}) {
      hash.add(static_cast<std::uint64_t>(number));
    }
    hash.add(random_ ? seed_ : 0);
    if (random_ && crop_ != CropOptions{}) {
      for (const double number : {crop_.area[0], crop_.area[1], crop_.ratio[0], crop_.ratio[1]}) {
        hash.add(std::bit_cast<std::uint64_t>(number));
      }
    }
    for (const FolderFile& file : files_) {
      hash.add(static_cast<std::uint64_t>(file.label));
      hash.add(std::span(reinterpret_cast<const std::uint8_t*>(file.name.data()), file.name.size()));
    }
    fingerprint_ = hash.value();
  }

  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return files_[static_cast<std::size_t>(index)].label;
  }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override { read(index, std::nullopt, image); }
  void read_in(std::int64_t epoch, std::int64_t index, std::span<std::uint8_t> image) const override {
    read(index, random_ ? std::optional(epoch) : std::nullopt, image);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  void read(std::int64_t index, std::optional<std::int64_t> epoch, std::span<std::uint8_t> image) const {
    thread_local Scratch scratch;
    const std::string& name = files_[static_cast<std::size_t>(index)].name;
    const std::string text = shown(folder_, name);
    const images::Header header = load(folder_, name, text, scratch.file);

    // EXIF's orientation: rows and columns exchanged, then one or both mirrored.
    const int turn = header.orientation;
    const bool transposed = turn >= 5;
    const bool mirrored_x = turn == 2 || turn == 3 || turn == 7 || turn == 8;
    const bool mirrored_y = turn == 3 || turn == 4 || turn == 6 || turn == 7;
    const std::int64_t width = transposed ? header.height : header.width;
    const std::int64_t height = transposed ? header.width : header.height;
    images::View view = images::centre_crop({width, height}, resize_, this->height());
    if (epoch) {
      Random random(seed_, RandomUse::augment, static_cast<std::uint64_t>(*epoch), static_cast<std::uint64_t>(index));
      view = images::random_crop({width, height}, {this->width(), this->height()}, crop_, random);
      if (flip_ && random.below(2) == 1) {
        view = images::mirrored(view, this->width());
      }
    }
    // As stored.
    images::Axis x = transposed ? view.y : view.x;
    images::Axis y = transposed ? view.x : view.y;
    x = mirrored_x ? images::mirrored(x, header.width) : x;
    y = mirrored_y ? images::mirrored(y, header.height) : y;
    images::Picture& picture = scratch.picture;
    images::decode(scratch.file, text, header, shrink_for(view), picture);
    images::resample(picture, shrunk(x, picture.shrink, picture.width), shrunk(y, picture.shrink, picture.height),
                     {this->width(), this->height()}, transposed, scratch.resample, image);
    keep_little(scratch.file);
    keep_little(picture.pixels);
    keep_little(scratch.resample.rows);
  }

  std::string folder_;
  std::vector<FolderFile> files_;
  std::int64_t resize_;
  CropOptions crop_;
  std::uint64_t seed_;
  bool random_;
  bool flip_;
  std::uint64_t fingerprint_ = 0;
};

/// The options with what they mean. UsageError, also in a build without the libraries.
FolderOptions resolved(const std::string& folder, FolderOptions options) {
  require<UsageError>(images::available(), "data is 'folder:", folder,
                      "', and this build reads no JPEG and PNG files: install libjpeg-turbo and libpng (apt-get "
                      "install libjpeg-dev libpng-dev) and configure with -DLOCKSTEP_IMAGES=ON");
  images::require_crop(options.crop);
  const std::int64_t size = options.image_size;
  require<UsageError>(size >= 1 && size <= kMostSide, "image size is ", size, ", expected 1 to ", kMostSide);
  if (options.resize == 0) {
    options.resize = (size * 256 + 112) / 224;
  }
  require<UsageError>(options.resize >= size && options.resize <= 2 * kMostSide, "resize is ", options.resize,
                      ", expected at least the image size, ", size, ", and at most ", 2 * kMostSide);
  return options;
}

/// What is wrong with a file; empty: nothing.
std::string damage_of(const std::string& folder, const std::string& name, Scratch& scratch) {
  const std::string text = shown(folder, name);
  try {
    const images::Header header = load(folder, name, text, scratch.file);
    images::decode(scratch.file, text, header, 8, scratch.picture);  // all of the file, in the least time
  } catch (const FileError&) {
    throw;
  } catch (const DataError& error) {
    return error.what();
  }
  keep_little(scratch.picture.pixels);
  return {};
}

}  // namespace

DataSplit detail::open_folder(const std::string& folder, const FolderOptions& given, std::uint64_t seed) {
  const FolderOptions options = resolved(folder, given);
  FolderList list = list_folder(folder, options.val_fraction, seed);
  leave_out(list, options.left_out, folder);
  DataSplit split;
  split.train = std::make_unique<FolderImages>("folder:" + folder + " train", folder, std::move(list.train),
                                               list.classes, options, seed, options.random_crops);
  split.test = std::make_unique<FolderImages>("folder:" + folder + " test", folder, std::move(list.test), list.classes,
                                              options, seed, false);
  split.statistics = kImageNet;
  split.class_names = std::move(list.names);
  split.about = concat(list.about, ", resized to ", options.resize, " and cropped; ",
                       !options.random_crops           ? std::string("training images likewise")
                       : options.crop == CropOptions{} ? std::string("random crops to train on")
                                                       : "random parts to train on, " + images::text_of(options.crop));
  return split;
}

std::vector<DamagedImage> damaged_images(const DataOptions& options, int parts, int part, int threads) {
  constexpr std::string_view kKind = "folder:";
  require<UsageError>(options.spec.starts_with(kKind) && threads >= 1, "damaged images of '", options.spec, "' by ",
                      threads, " threads, expected folder:DIR and at least 1");
  const std::string folder = options.spec.substr(kKind.size());
  FolderList list = detail::list_folder(folder, resolved(folder, options.folder).val_fraction, options.seed);
  std::vector<FolderFile> files = std::move(list.train);
  files.insert(files.end(), std::make_move_iterator(list.test.begin()), std::make_move_iterator(list.test.end()));
  const Partition share = partition_of(static_cast<std::int64_t>(files.size()), parts, part);
  std::vector<std::string> texts(static_cast<std::size_t>(share.count));
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failed;
  const auto check = [&] {
    try {
      Scratch scratch;
      for (std::int64_t i = next++; i < share.count; i = next++) {
        texts[static_cast<std::size_t>(i)] =
            damage_of(folder, files[static_cast<std::size_t>(share.begin + i)].name, scratch);
      }
    } catch (...) {
      next = share.count;
      const std::lock_guard lock(mutex);
      failed = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) {
    workers.emplace_back(check);
  }
  check();
  for (std::thread& worker : workers) {
    worker.join();
  }
  if (failed != nullptr) {
    std::rethrow_exception(failed);
  }
  std::vector<DamagedImage> damaged;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) {
      damaged.push_back({files[static_cast<std::size_t>(share.begin) + i].name, texts[i]});
    }
  }
  return damaged;
}

}  // namespace lockstep::nn
