#include <lockstep/app/evaluation_file.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <lockstep/nn/data/images/encode.hpp>

namespace lockstep::nn {

namespace {

/// Returns `image` with each block of `factor` x `factor` pixels replaced by one pixel, the block's mean. Pixels at the
/// right and lower edge that fill no block are cut off.
images::Picture shrunk(std::span<const std::byte> image, std::int64_t height, std::int64_t width, std::int64_t factor) {
  images::Picture small;
  small.width = std::max<std::int64_t>(width / factor, 1);
  small.height = std::max<std::int64_t>(height / factor, 1);
  for (std::int64_t y = 0; y < small.height; ++y) {
    for (std::int64_t x = 0; x < small.width; ++x) {
      for (std::int64_t c = 0; c < 3; ++c) {
        std::int64_t sum = 0;
        std::int64_t count = 0;
        for (std::int64_t v = y * factor; v < std::min((y + 1) * factor, height); ++v) {
          for (std::int64_t u = x * factor; u < std::min((x + 1) * factor, width); ++u, ++count) {
            sum += std::to_integer<std::int64_t>(image[static_cast<std::size_t>((v * width + u) * 3 + c)]);
          }
        }
        small.pixels.push_back(static_cast<std::uint8_t>((sum + count / 2) / count));
      }
    }
  }
  return small;
}

}  // namespace

std::string picture_of(const Dataset& set, std::int64_t sample, std::int64_t most_side) {
  const auto fields = set.fields();
  const auto field = std::find_if(fields.begin(), fields.end(), [](const SampleField& f) {
    return f.field == StateField::images && f.dtype == DType::u8 && f.shape.rank() == 3 && f.shape[2] == 3;
  });
  if (field == fields.end() || !images::available()) {
    return {};
  }
  std::vector<std::vector<std::byte>> memory;
  for (const SampleField& each : fields) {
    memory.emplace_back(each.bytes());
  }
  const std::vector<std::span<std::byte>> out(memory.begin(), memory.end());
  set.read_sample(sample, out);
  const std::int64_t height = field->shape[0];
  const std::int64_t width = field->shape[1];
  const std::int64_t factor = (std::max(height, width) + most_side - 1) / most_side;
  return images::encode_png(shrunk(out[static_cast<std::size_t>(field - fields.begin())], height, width, factor));
}

void EvaluationFile::on_evaluation_end(const EvaluationEvent& event) {
  const ClassReport& report = watch_.report();
  if (!files_.writes()) {
    return;
  }
  Json::Object evaluation =
      json_of(report, class_names_, [this](std::int64_t sample) { return picture_of(test_, sample); });
  evaluation.insert({{"format", 1},
                     {"step", event.step},
                     {"loss", event.loss},
                     {"accuracy", event.accuracy},
                     {"samples", report.samples()}});
  files_.write_evaluation(std::move(evaluation));
}

}  // namespace lockstep::nn
