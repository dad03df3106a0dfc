// Finishes batches of images on the device: kernels resize, recolour, erase and mix them.

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/kernels/adjust_colours.hpp>
#include <lockstep/kernels/erase_and_mix.hpp>
#include <lockstep/kernels/jpeg_decoder.hpp>
#include <lockstep/kernels/resized_crop.hpp>
#include <lockstep/nn/data/detail/device_images.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn::detail {
namespace {

/// Largest number of host threads in which nvJPEG decodes entropy codes. nvJPEG does this step on the host if there are
/// few files.
constexpr int kEntropyThreads = 4;

/// Sizes of the parts of a preprocessor's single block of device memory, and their offsets in the block.
struct Extents {
  Extents(const DeviceImages& set, std::int64_t capacity, bool on_gpu)
      : samples(capacity),
        pictures(capacity * set.pictures()),
        row_bytes(set.decoded_bytes()),
        image{pictures, set.images().height(), set.images().width(), 3} {
    const auto add = [this](bool needed, std::int64_t count) {
      const std::size_t at = bytes;
      bytes += needed ? align_up(static_cast<std::size_t>(count), kAlignment) : 0;
      return at;
    };
    const std::int64_t image_bytes = set.images().image_bytes();
    slots = on_gpu ? 2 : 1;
    rows_at = add(on_gpu, pictures * row_bytes);
    work_at = add(on_gpu, pictures * WorkColumns::kColumns * std::int64_t{sizeof(double)});
    greys_at = add(set.options().jitter.any(), pictures * std::int64_t{sizeof(std::int64_t)});
    resized_at = add(set.options().mixes(), pictures * image_bytes);
    for (int i = 0; i < slots; ++i) {
      images_at[static_cast<std::size_t>(i)] = add(true, samples * image_bytes);
    }
  }
  std::int64_t samples;
  std::int64_t pictures;
  std::int64_t row_bytes;
  Shape image;  ///< shape of the images of all pictures: (pictures, H, W, 3)
  int slots = 1;
  std::size_t rows_at = 0;
  std::size_t work_at = 0;
  std::size_t greys_at = 0;
  std::size_t resized_at = 0;
  std::array<std::size_t, 2> images_at{};
  std::size_t bytes = 0;
};

/// Finishes batches. On a GPU the work runs on its own side stream, the picture stream:
///
///   picture stream    wait used(n - 2) | copy to device | decode, resize, recolour, erase, mix | record finished
///   context's stream  step n - 1 ...................................... wait finished | step n
///
/// So a batch is finished while the step before it runs. There are two slots of images, which batches use in turn. The
/// slot of batch n is free when step n - 2 has ended. The event used(n - 2) marks that end; the context's stream
/// recorded this event in the previous call. On the host, the work runs in order on the context's stream, and kernels
/// read the pictures in the loader's memory.
class PictureFinisher final : public BatchPreprocessor {
 public:
  PictureFinisher(const DeviceImages& set, Context& context, std::int64_t capacity)
      : set_(set),
        context_(context),
        extents_(set, capacity, context.device().kind == DeviceKind::cuda),
        finished_(context.device()),
        idle_context_(context.stream()) {
    if (on_gpu()) {
      own_ = std::make_unique<CudaContext>(context.device(), CudaContextOptions{.memory = &context.memory()});
      used_.emplace_back(context.device());
      used_.emplace_back(context.device());
    }
    if (set.keeps_jpeg()) {
      decoder_.emplace(work_context(),
                       ops::JpegDecoder::Options{.most = extents_.pictures, .host_threads = kEntropyThreads});
      files_.reserve(static_cast<std::size_t>(extents_.pictures));
      owners_.reserve(static_cast<std::size_t>(extents_.pictures));
    }
    memory_ = Buffer(extents_.bytes, work_context());
    if (on_gpu()) {
      idle_.emplace(own_->stream());
    }
  }

  [[nodiscard]] const Batch& finish(const Batch& batch) override {
    Context& context = work_context();
    const TensorView& given = batch.view(StateField::pictures);
    const std::int64_t samples = given.shape[0];
    require<UsageError>(samples <= extents_.samples, set_.name(), ": a batch of ", samples,
                        " samples, expected at most ", extents_.samples);
    const std::int64_t pictures = samples * set_.pictures();
    const TensorView host_work = batch.view(StateField::picture_work).reshape({pictures, WorkColumns::kColumns});
    TensorView rows = given.reshape({pictures, set_.row_bytes()});
    TensorView work = host_work;
    if (on_gpu()) {
      begin_on_gpu();
      rows = view(extents_.rows_at, DType::u8, {pictures, extents_.row_bytes});
      work = view(extents_.work_at, DType::f64, {pictures, WorkColumns::kColumns});
      copy(context, host_work, work);
      send(batch, host_work, rows);
    }
    const std::size_t slot = static_cast<std::size_t>(calls_++) % static_cast<std::size_t>(extents_.slots);
    const TensorView images = image_view(extents_.images_at[slot], samples);
    const AugmentationOptions& options = set_.options();
    const TensorView resized = options.mixes() ? image_view(extents_.resized_at, pictures) : images;
    const auto columns = [&work](int first, std::int64_t count) { return work.slice(1, first, first + count); };
    ops::resized_crop(context, rows, columns(WorkColumns::kPart, ops::kPartColumns), resized);
    if (options.jitter.any()) {
      ops::adjust_colours(context, resized, columns(WorkColumns::kChanges, ops::kColourColumns),
                          view(extents_.greys_at, DType::i64, {pictures}));
    }
    if (options.erase > 0 || options.mixes()) {
      erase_and_mix(samples, resized, work, images);
    }
    if (on_gpu()) {
      context.stream().record(finished_);
      context_.stream().wait(finished_);
    }
    return batch_with(batch, images);
  }

  void wait_for_copies() override { work_context().stream().synchronize(); }

 private:
  [[nodiscard]] bool on_gpu() const { return context_.device().kind == DeviceKind::cuda; }
  [[nodiscard]] Context& work_context() { return own_ != nullptr ? *own_ : context_; }

  [[nodiscard]] TensorView view(std::size_t at, DType dtype, const Shape& shape) const {
    return {memory_.data() + at, dtype, context_.device(), shape};
  }
  [[nodiscard]] TensorView image_view(std::size_t at, std::int64_t count) const {
    Shape shape = extents_.image;
    shape[0] = count;
    return view(at, DType::u8, shape);
  }

  void begin_on_gpu() {
    const std::size_t now = static_cast<std::size_t>(calls_) % used_.size();
    context_.stream().record(used_[now]);
    if (calls_ > 0) {
      own_->stream().wait(used_[1 - now]);
    }
  }

  /// Copies the used part of each row of pixels to the device. Consecutive rows that are fully used take one copy. If a
  /// row holds a JPEG file, decodes the file into the same row on the device.
  void send(const Batch& batch, const TensorView& host_work, const TensorView& rows) {
    const auto* table = host_work.as<double>();                        // parameters, (pictures, columns)
    auto* from = batch.view(StateField::pictures).as<std::uint8_t>();  // host rows, (pictures, bytes)
    auto* to = rows.as<std::uint8_t>();                                // device rows, (pictures, bytes)
    const std::int64_t row = set_.row_bytes();
    std::int64_t begin = 0;  // first row of the next copy to enqueue
    std::int64_t bytes = 0;  // size of the next copy to enqueue
    const auto flush = [&] {
      if (bytes > 0) {
        copy(*own_, TensorView(from + begin * row, DType::u8, Device::cpu(), {bytes}),
             TensorView(to + begin * extents_.row_bytes, DType::u8, context_.device(), {bytes}));
      }
      bytes = 0;
    };
    files_.clear();
    owners_.clear();
    for (std::int64_t i = 0; i < rows.shape[0]; ++i) {
      const double* work = table + i * WorkColumns::kColumns;
      const auto column = [work](ops::PartColumn which) {
        return static_cast<std::int64_t>(work[WorkColumns::kPart + static_cast<int>(which)]);
      };
      const std::int64_t width = column(ops::PartColumn::width);
      const std::int64_t height = column(ops::PartColumn::height);
      const auto file = static_cast<std::size_t>(work[WorkColumns::kFile]);
      if (file > 0) {
        flush();
        files_.push_back({{from + i * row, file}, width, height, to + i * extents_.row_bytes});
        owners_.push_back(i);
        continue;
      }
      const bool behind = bytes > 0 && row == extents_.row_bytes && bytes == (i - begin) * row;
      if (!behind) {
        flush();
        begin = i;
      }
      bytes += width * height * 3;
    }
    flush();
    if (!files_.empty()) {
      decode(batch);
    }
  }

  void decode(const Batch& batch) {
    try {
      decoder_->decode(files_);
    } catch (const DataError& error) {
      const std::int64_t picture = owners_[static_cast<std::size_t>(decoder_->failed())];
      std::int64_t sample = batch.view(StateField::sample_ids).as<std::int64_t>()[picture / set_.pictures()];
      if (picture % set_.pictures() == 1) {
        sample = set_.other_of(batch.epoch, sample);
      }
      throw DataError(concat(set_.images().text_of(sample), ": ", error.what()));
    }
  }

  void erase_and_mix(std::int64_t samples, const TensorView& resized, const TensorView& work, const TensorView& out) {
    const std::int64_t count = set_.pictures();
    const Shape& image = extents_.image;
    const auto erased = work.reshape({samples, count, WorkColumns::kColumns})
                            .slice(2, WorkColumns::kErased, WorkColumns::kErased + ops::kErasureColumns);
    TensorView mixtures;
    if (set_.options().mixes()) {
      mixtures = work.reshape({samples, count * WorkColumns::kColumns})
                     .slice(1, WorkColumns::kMixture, WorkColumns::kMixture + ops::kMixtureColumns);
    }
    ops::erase_and_mix(work_context(), set_.options().fill,
                       resized.reshape({samples, count, image[1], image[2], image[3]}), erased, mixtures, out);
  }

  const Batch& batch_with(const Batch& from, const TensorView& images) {
    batch_.fields.clear();
    batch_.fields.push_back({StateField::images, images});
    for (const FieldView& field : from.fields) {
      if (field.field != StateField::pictures && field.field != StateField::picture_work) {
        batch_.fields.push_back(field);
      }
    }
    batch_.valid = from.valid;
    batch_.global_valid = from.global_valid;
    batch_.epoch = from.epoch;
    batch_.index = from.index;
    batch_.last_of_epoch = from.last_of_epoch;
    return batch_;
  }

  const DeviceImages& set_;
  Context& context_;
  Extents extents_;
  std::unique_ptr<CudaContext> own_;  ///< owns the picture stream; nullptr on the host
  std::deque<Event> used_;            ///< events that the context's stream recorded in the last two calls
  Event finished_;
  Buffer memory_;
  std::optional<ops::JpegDecoder> decoder_;
  std::vector<ops::JpegDecoder::File> files_;
  std::vector<std::int64_t> owners_;  ///< for each element of files_, the number of the picture in the batch
  std::int64_t calls_ = 0;
  Batch batch_;
  std::optional<SyncGuard> idle_;  ///< waits for the stream of own_; destroyed before the memory that queued work uses
  SyncGuard idle_context_;         ///< waits for the context's stream; destroyed first
};

}  // namespace

std::unique_ptr<BatchPreprocessor> DeviceImages::preprocessor(Context& context, std::int64_t capacity) const {
  return std::make_unique<PictureFinisher>(*this, context, capacity);
}

std::size_t DeviceImages::preprocessor_bytes(Device device, std::int64_t capacity) const {
  return Extents(*this, capacity, device.kind == DeviceKind::cuda).bytes;
}

}  // namespace lockstep::nn::detail
