// The input is an image file.
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/images/resample.hpp>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

void image(Input input) {
  namespace images = nn::images;
  images::Header header;
  if (!accepts<DataError>([&] { header = images::read_header(input, "input"); })) {
    return;
  }
  check(header.width > 0 && header.height > 0 && header.width <= images::kMaxPixels / header.height, "size ",
        header.width, " x ", header.height);
  check(header.orientation >= 1 && header.orientation <= 8, "orientation ", header.orientation);
  if (header.format == images::Format::jpeg) {
    (void)images::plain_jpeg(input, "input");  // must not throw: the header is valid
  }
  // An image that decodes at 1/8 of its size must also decode at 1/4 and at full size, and the reverse.
  images::Picture small;
  const bool sound = accepts<DataError>([&] { images::decode(input, "input", header, 8, small); });
  images::Picture picture;
  for (const int shrink : {4, 1}) {
    const bool accepted = accepts<DataError>([&] { images::decode(input, "input", header, shrink, picture); });
    check(accepted == sound, "decoded at 1/8: ", sound, ", at 1/", shrink, ": ", accepted);
  }
  if (!sound) {
    return;
  }
  check(picture.shrink == 1 && picture.width == header.width && picture.height == header.height,
        "another size than the header's");
  check(small.width == (header.width + small.shrink - 1) / small.shrink &&
            small.height == (header.height + small.shrink - 1) / small.shrink,
        "another size than 1/", small.shrink);
  constexpr std::int64_t kSize = 3;
  const auto whole = [](std::int64_t extent) {
    return images::Axis{0, static_cast<double>(extent) / kSize, 0, extent};
  };
  images::ResampleMemory memory;
  std::vector<std::uint8_t> out(kSize * kSize * 3);
  resample(view_of(picture), whole(picture.width), images::mirrored(whole(picture.height), picture.height),
           {kSize, kSize}, true, memory, out);
}

}  // namespace lockstep::fuzz
