// Opens packed:FILE: makes the training and the test set from the images of a packed file.

#include <algorithm>
#include <utility>

#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {
namespace {

/// The pictures of samples [begin, begin + size) of a packed file.
class PackedPictures final : public Pictures {
 public:
  PackedPictures(std::shared_ptr<const PackedFile> file, std::int64_t begin, std::int64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}

  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override { return sample(index).label; }
  [[nodiscard]] std::string_view name(std::int64_t index) const override { return sample(index).name; }
  [[nodiscard]] Opened open(std::int64_t index, std::vector<std::uint8_t>& /*memory*/) const override {
    const PackedSample& known = sample(index);
    Opened opened{.bytes = file_->read(begin_ + index), .decoded = file_->store() == PackedStore::pixels};
    if (opened.decoded) {
      opened.header = {known.jpeg ? images::Format::jpeg : images::Format::png, known.width, known.height,
                       known.orientation};
      return opened;
    }
    opened.text = file_->text_of(begin_ + index);
    opened.header = packed_header(known, opened.bytes, opened.text);
    return opened;
  }

  void ahead(std::int64_t begin, std::int64_t count) const noexcept override { file_->ahead(begin_ + begin, count); }

  /// Returns the parameter `kind` of PictureImages for images of side `image_size`. The result is not 0 if the stored
  /// pixels differ from the pixels that a folder of the same pictures gives.
  [[nodiscard]] std::uint64_t kind(std::int64_t image_size) const {
    if (file_->store() == PackedStore::files) {
      return 0;
    }
    if (file_->resized() > 0) {
      return 1 + static_cast<std::uint64_t>(file_->resized());
    }
    bool decoded_smaller = false;
    for (std::int64_t i = 0; i < size_; ++i) {
      const auto shorter = static_cast<double>(std::min(sample(i).width, sample(i).height));
      const double most_step = shorter / static_cast<double>(image_size);
      decoded_smaller = decoded_smaller || (sample(i).jpeg && shrink_for(most_step, most_step) > 1);
    }
    return decoded_smaller ? 1 : 0;
  }

 private:
  [[nodiscard]] const PackedSample& sample(std::int64_t index) const { return file_->sample(begin_ + index); }

  std::shared_ptr<const PackedFile> file_;
  std::int64_t begin_;
  std::int64_t size_;
};

}  // namespace

DataSplit open_packed(const std::string& path, const FolderOptions& given, std::uint64_t seed) {
  const FolderOptions options = resolved(given);
  require<UsageError>(options.val_fraction == 0 && options.left_out.empty(), "data is 'packed:", path, "' with ",
                      options.val_fraction == 0 ? "files to leave out" : "a validation fraction",
                      ", expected none of them: give them to lockstep-pack");
  const auto file = std::make_shared<const PackedFile>(path);
  if (file->store() == PackedStore::files) {
    require_decoders("packed:" + path);
  }
  const auto classes = static_cast<int>(file->class_names().size());
  const auto images_of = [&](const char* part, std::int64_t begin, std::int64_t size, bool random) {
    auto pictures = std::make_unique<PackedPictures>(file, begin, size);
    const std::uint64_t kind = pictures->kind(options.image_size);
    return std::make_unique<PictureImages>(concat("packed:", path, part), std::move(pictures), classes, options, seed,
                                           random, kind);
  };
  DataSplit split;
  auto train = images_of(" train", 0, file->train_size(), options.random_crops);
  split.about = concat("packed ", name_of(file->store()),
                       file->resized() > 0 ? concat(" of shorter side ", file->resized()) : std::string(), ", ",
                       text_of(options), train->enlarged_text());
  split.train = std::move(train);
  split.test = images_of(" test", file->train_size(), file->test_size(), false);
  split.statistics = imagenet_statistics();
  split.class_names = file->class_names();
  split.files = file->store() == PackedStore::files;
  return split;
}

}  // namespace lockstep::nn::detail
