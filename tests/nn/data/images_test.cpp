// Tests decoding and resampling of single images, without data sets.
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/images/resample.hpp>

#include <span>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/nn/data/plain_resample.hpp"
#include "tests/support/files.hpp"
#include "tests/support/image_files.hpp"

namespace lockstep::nn {
namespace {

using images::Axis;
using images::Picture;
using testing::error_of, testing::expect_holds, testing::JpegOptions, testing::Pixels, testing::pixels;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

Picture decoded(const std::string& file, int shrink = 1) {
  Picture picture;
  images::decode(bytes_of(file), "a.file", images::read_header(bytes_of(file), "a.file"), shrink, picture);
  EXPECT_EQ(picture.pixels.size(), static_cast<std::size_t>(picture.width * picture.height * 3));
  return picture;
}

std::string refused(const std::string& file) {
  return error_of<DataError>([&] { (void)decoded(file); });
}

/// Expects every channel of every pixel to differ from `expected` by at most `most`.
void expect_pixels(const Picture& picture, std::int64_t width, std::int64_t height, int most,
                   const std::function<int(std::int64_t, std::int64_t, int)>& expected) {
  ASSERT_EQ(picture.width, width);
  ASSERT_EQ(picture.height, height);
  std::size_t at = 0;
  int wrong = 0;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c, ++at) {
        const int difference = std::abs(int{picture.pixels[at]} - expected(y, x, c));
        if (difference > most && ++wrong < 5) {
          ADD_FAILURE() << "row " << y << ", column " << x << ", channel " << c << ": " << int{picture.pixels[at]}
                        << ", expected " << expected(y, x, c);
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

int ramp(std::int64_t y, std::int64_t x, int c) {
  return static_cast<int>((17 * y + 5 * x + 90 * c) % 256);
}

TEST(Png, AllKindsBecomeRgb) {
  const auto grey = [](std::int64_t y, std::int64_t x, int /*c*/) { return ramp(y, x, 0); };
  for (const bool interlaced : {false, true}) {
    expect_pixels(decoded(png(pixels(13, 7, 3, ramp), {.interlaced = interlaced})), 13, 7, 0, ramp);
    expect_pixels(decoded(png(pixels(13, 7, 4, ramp), {.interlaced = interlaced})), 13, 7, 0, ramp);  // no alpha
    expect_pixels(decoded(png(pixels(5, 3, 1, ramp), {.interlaced = interlaced})), 5, 3, 0, grey);
    expect_pixels(decoded(png(pixels(5, 3, 2, ramp), {.interlaced = interlaced})), 5, 3, 0, grey);
  }
  expect_pixels(decoded(png(pixels(1, 1, 3, ramp))), 1, 1, 0, ramp);
  const auto bit = [](std::int64_t y, std::int64_t x, int /*c*/) { return static_cast<int>((x + y) % 2); };
  expect_pixels(decoded(png(pixels(9, 4, 1, bit), {.bits = 1})), 9, 4, 0,
                [&](std::int64_t y, std::int64_t x, int c) { return 255 * bit(y, x, c); });
  // The writer makes the first colour transparent. The decoder must ignore the transparency.
  const std::vector<std::uint8_t> palette{1, 2, 3, 250, 100, 50};
  expect_pixels(decoded(png(pixels(9, 4, 1, bit), {.bits = 8, .palette = palette})), 9, 4, 0,
                [&](std::int64_t y, std::int64_t x, int c) {
                  return int{palette[static_cast<std::size_t>(3 * bit(y, x, 0) + c)]};
                });
}

TEST(Png, SixteenBitsAreRounded) {
  for (const int channels : {1, 2, 3, 4}) {
    const auto wide = [&](std::int64_t y, std::int64_t x, int c) {
      return static_cast<int>((y * 7919 + x * 104729 + c * 31337) % 65536);
    };
    Pixels two = pixels(16, 16, channels * 2, [&](std::int64_t y, std::int64_t x, int c) {
      const int value = wide(y, x, c / 2);
      return c % 2 == 0 ? value >> 8 : value & 255;
    });
    two.channels = channels;
    expect_pixels(decoded(png(two, {.bits = 16})), 16, 16, 0, [&](std::int64_t y, std::int64_t x, int c) {
      return static_cast<int>(std::lround(wide(y, x, channels < 3 ? 0 : c) / 257.0));
    });
  }
}

/// Returns the value of an image made of squares of 16 x 16 pixels. Each square has one colour, so JPEG changes it by
/// at most a few levels.
int square(std::int64_t y, std::int64_t x, int c) {
  return static_cast<int>((40 + 60 * (y / 16) + 90 * (x / 16) + 70 * c) % 256);
}

TEST(Jpeg, AllKindsBecomeRgb) {
  for (const bool progressive : {false, true}) {
    const JpegOptions options{.progressive = progressive};
    expect_pixels(decoded(jpeg(pixels(48, 32, 3, square), options)), 48, 32, 3, square);
    expect_pixels(decoded(jpeg(pixels(48, 32, 1, square), options)), 48, 32, 1,
                  [](std::int64_t y, std::int64_t x, int /*c*/) { return square(y, x, 0); });
    // CMYK as Adobe stores it: 255 means no ink.
    expect_pixels(decoded(jpeg(pixels(48, 32, 4, square), options)), 48, 32, 3,
                  [](std::int64_t y, std::int64_t x, int c) { return square(y, x, c) * square(y, x, 3) / 255; });
  }
  expect_pixels(decoded(jpeg(pixels(48, 32, 3, square), {.scan_a_channel = true})), 48, 32, 3, square);
  EXPECT_EQ(decoded(jpeg(pixels(17, 1, 3, square), {.half_colours = true})).width, 17);
}

TEST(Jpeg, ThoseThatNvJpegReadsAreKnown) {
  const auto plain = [](int channels, const JpegOptions& options) {
    const std::string file = jpeg(pixels(48, 32, channels, square), options);
    return images::plain_jpeg(bytes_of(file), "a.file");
  };
  for (const JpegOptions& options :
       {JpegOptions{}, {.half_colours = true}, {.rows_of_luma = 2}, {.progressive = true}}) {
    EXPECT_TRUE(plain(3, options));
  }
  EXPECT_TRUE(plain(1, {}));
  EXPECT_FALSE(plain(4, {}));
  EXPECT_FALSE(plain(3, {.rows_of_luma = 4}));
  EXPECT_FALSE(plain(3, {.arithmetic = true}));
  EXPECT_FALSE(plain(1, {.arithmetic = true}));
}

TEST(Jpeg, IsDecodedSmaller) {
  const std::string file = jpeg(pixels(80, 48, 3, square));
  for (const int shrink : {2, 4, 8}) {
    const Picture picture = decoded(file, shrink);
    EXPECT_EQ(picture.shrink, shrink);
    expect_pixels(picture, 80 / shrink, 48 / shrink, 4,
                  [&](std::int64_t y, std::int64_t x, int c) { return square(y * shrink, x * shrink, c); });
  }
  EXPECT_EQ(decoded(jpeg(pixels(17, 9, 3, square)), 8).width, 3);
  EXPECT_EQ(decoded(png(pixels(17, 9, 3, square)), 8).width, 17);
  EXPECT_EQ(decoded(png(pixels(17, 9, 3, square)), 8).shrink, 1);
  expect_holds(error_of<UsageError>([&] { (void)decoded(file, 3); }), "shrink is 3");
}

TEST(Exif, OrientationsAreRead) {
  const auto orientation = [](const std::string& file) {
    return images::read_header(bytes_of(file), "a.file").orientation;
  };
  const Pixels some = pixels(16, 8, 3, square);
  EXPECT_EQ(orientation(jpeg(some)), 1);
  EXPECT_EQ(orientation(png(some)), 1);
  for (int turn = 1; turn <= 8; ++turn) {
    for (const bool big : {false, true}) {
      EXPECT_EQ(orientation(jpeg(some, {.exif = testing::exif(turn, big)})), turn);
      EXPECT_EQ(orientation(png(some, {.exif = testing::exif(turn, big)})), turn);
    }
  }
  // An orientation that cannot be read is ignored. Here its number is not 1 to 8, or the EXIF data is cut, begins with
  // wrong bytes, or has an offset beyond its end.
  EXPECT_EQ(orientation(jpeg(some, {.exif = testing::exif(0)})), 1);
  EXPECT_EQ(orientation(jpeg(some, {.exif = testing::exif(9)})), 1);
  const std::string whole = testing::exif(6);
  for (std::size_t size = 1; size < whole.size(); ++size) {
    EXPECT_EQ(orientation(jpeg(some, {.exif = whole.substr(0, size)})), size < 19 ? 1 : 6) << size;
  }
  EXPECT_EQ(orientation(jpeg(some, {.exif = "XX" + whole.substr(2)})), 1);
  EXPECT_EQ(orientation(jpeg(some, {.exif = whole.substr(0, 4) + "\xff\xff\xff\xff" + whole.substr(8)})), 1);
}

TEST(Damage, EveryCutIsFound) {
  for (const std::string& file : {jpeg(pixels(24, 16, 3, ramp)), jpeg(pixels(24, 16, 3, ramp), {.progressive = true}),
                                  png(pixels(9, 7, 3, ramp)), png(pixels(9, 7, 3, ramp), {.interlaced = true})}) {
    (void)decoded(file);
    for (std::size_t size = 0; size < file.size(); ++size) {
      expect_holds(refused(file.substr(0, size)), "a.file: ");
    }
  }
}

TEST(Damage, FlippedBytesAreRefusedOrArePixels) {
  const std::string png_file = png(pixels(9, 7, 3, ramp));
  for (const std::string& file :
       {jpeg(pixels(24, 16, 3, ramp)), jpeg(pixels(24, 16, 4, ramp), {.progressive = true}), png_file}) {
    for (std::size_t at = 0; at < file.size(); ++at) {
      for (const char flip : {'\x01', '\x80', '\xff'}) {
        std::string bad = file;
        bad[at] = static_cast<char>(bad[at] ^ flip);
        try {
          const Picture picture = decoded(bad);
          if (file == png_file) {
            // A checksum covers every byte. Newer versions of libpng ignore the checksum of the last chunk, which is
            // empty.
            EXPECT_GE(at, file.size() - 4);
            EXPECT_EQ(picture.pixels, decoded(file).pixels) << at;
          }
        } catch (const DataError& error) {
          EXPECT_TRUE(std::string(error.what()).starts_with("a.file: ")) << error.what();
        }
      }
    }
  }
}

TEST(Damage, OtherFilesAreNamed) {
  expect_holds(refused(""), "a.file: is no JPEG or PNG file, by its first bytes: it is empty");
  expect_holds(refused("GIF89a and more"), "is no JPEG or PNG file");
}

std::string with(std::string file, std::size_t at, const std::string& bytes) {
  return file.replace(at, bytes.size(), bytes);
}

TEST(Damage, MoreThanTheLimitsIsRefusedBeforeMemoryIsTaken) {
  // JPEG: the frame header stores the height and the width. The test overwrites both.
  const std::string jpeg_file = jpeg(pixels(8, 8, 3, ramp));
  const std::size_t frame = jpeg_file.find("\xff\xc0") + 5;
  expect_holds(refused(with(jpeg_file, frame, std::string("\xff\x00\xff\x00", 4))),
               "65280 x 65280 pixels, expected 1 to 134217728");
  expect_holds(
      refused(with(jpeg_file, frame, std::string("\x20\x00\x20\x00", 4))),
      concat("8192 x 8192 pixels in a JPEG of ", jpeg_file.size(), " bytes, expected at most 512 pixels a byte"));
  // A frame of 128 x 128 pixels has fewer than 512 pixels for each byte of the file, so this check accepts it. But the
  // data ends too early for so many pixels.
  expect_holds(refused(with(jpeg_file, frame, std::string("\x00\x80\x00\x80", 4))), "damaged or unknown JPEG data");
  // PNG: libpng checks the header's checksum before the size, so the test computes it.
  const auto png_of = [](std::uint32_t width, std::uint32_t height) {
    std::string header = "IHDR";
    for (const std::uint32_t value : {width, height}) {
      for (int shift = 24; shift >= 0; shift -= 8) {
        header += static_cast<char>(value >> shift & 255);
      }
    }
    header += std::string("\x08\x02\x00\x00\x00", 5);
    std::uint32_t sum = 0xFFFFFFFF;  // CRC-32, bit by bit
    for (const char byte : header) {
      sum ^= static_cast<unsigned char>(byte);
      for (int bit = 0; bit < 8; ++bit) {
        sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320U : 0U);
      }
    }
    sum = ~sum;
    for (int shift = 24; shift >= 0; shift -= 8) {
      header += static_cast<char>(sum >> shift & 255);
    }
    return png(pixels(9, 7, 3, ramp)).replace(12, header.size(), header);
  };
  expect_pixels(decoded(png_of(9, 7)), 9, 7, 0, ramp);  // the control: png_of() makes a valid file
  expect_holds(refused(png_of(0x7fffffff, 0x7fffffff)), "2147483647 x 2147483647 pixels, expected 1 to 134217728");
  expect_holds(refused(png_of(16384, 8193)), "16384 x 8193 pixels, expected 1 to");
  expect_holds(refused(png_of(16384, 8192)), "16384 x 8192 pixels in a PNG of");
  expect_holds(refused(png_of(9, 8)), "damaged or unknown PNG data");
}

TEST(Damage, ManyScansAreRefused) {
  const std::string file = jpeg(pixels(16, 16, 3, ramp), {.scan_a_channel = true});
  const std::size_t last = file.rfind("\xff\xda");
  const std::string scan = file.substr(last, file.size() - 2 - last);
  const auto repeated = [&](int times) {
    std::string text = file.substr(0, last);
    for (int i = 0; i < times; ++i) {
      text += scan;
    }
    return text + file.substr(file.size() - 2);
  };
  (void)decoded(repeated(90));
  expect_holds(refused(repeated(120)), "more than 100 scans");
}

struct Case {
  Axis x;
  Axis y;
};

TEST(Resample, IsAPlainLoopInDouble) {
  constexpr std::int64_t kWidth = 37;
  constexpr std::int64_t kHeight = 23;
  constexpr std::int64_t kSize = 11;
  Picture picture{kWidth, kHeight};
  Random random(3, RandomUse::test);
  for (std::int64_t i = 0; i < kWidth * kHeight * 3; ++i) {
    picture.pixels.push_back(static_cast<std::uint8_t>(random.below(256)));
  }
  const Axis whole_x{0, 37.0 / kSize, 0, kWidth};
  const Axis whole_y{0, 23.0 / kSize, 0, kHeight};
  const std::vector<Case> cases{
      {whole_x, whole_y},                                   // the output is smaller than the image
      {{3, 5.0 / kSize, 3, 8}, {20, 3.0 / kSize, 20, 23}},  // a small region; no pixel outside this region is read
      {{2.25, 1, 0, kWidth}, {1.5, 0.9, 0, kHeight}},       // a region that begins between two pixels
      {images::mirrored(whole_x, kWidth), whole_y},         // a mirrored image
      {whole_x, images::mirrored({4, 7.0 / kSize, 4, 11}, kHeight)},  // a mirrored region
      {{0, 1.0 / kSize, 0, 1}, whole_y},                              // a region of one column
      {{36, 1.0 / kSize, 36, 37}, {22, 1.0 / kSize, 22, 23}}};        // a region of one pixel
  images::ResampleMemory memory;
  for (const bool transposed : {false, true}) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Axis x = cases[i].x;
      const Axis y = cases[i].y;
      std::vector<std::uint8_t> out(kSize * kSize * 3);
      resample(view_of(picture), x, y, {kSize, kSize}, transposed, memory, out);
      for (std::int64_t a = 0; a < kSize; ++a) {
        for (std::int64_t b = 0; b < kSize; ++b) {
          for (std::int64_t c = 0; c < 3; ++c) {
            const double middle_x = x.begin + (static_cast<double>(b) + 0.5) * x.step;
            const double middle_y = y.begin + (static_cast<double>(a) + 0.5) * y.step;
            const double expected = testing::plain_mean(middle_y, y.step, y.low, y.high, [&](std::int64_t row) {
              return testing::plain_mean(middle_x, x.step, x.low, x.high, [&](std::int64_t column) {
                return static_cast<double>(picture.pixels[static_cast<std::size_t>((row * kWidth + column) * 3 + c)]);
              });
            });
            const double found = out[static_cast<std::size_t>((transposed ? b * kSize + a : a * kSize + b) * 3 + c)];
            EXPECT_TRUE(std::abs(found - expected) <= 0.5 + 1e-3)
                << "case " << i << ", (" << a << ", " << b << ", " << c << "): " << found << ", expected " << expected;
          }
        }
      }
    }
  }
}

TEST(Resample, SameSizeIsTheSamePicture) {
  constexpr std::int64_t kSize = 19;
  const Pixels some = pixels(kSize, kSize, 3, ramp);
  const Picture picture{kSize, kSize, 1, some.values};
  images::ResampleMemory memory;
  std::vector<std::uint8_t> out(some.values.size());
  resample(view_of(picture), {0, 1, 0, kSize}, {0, 1, 0, kSize}, {kSize, kSize}, false, memory, out);
  EXPECT_EQ(out, some.values);
  // The control: a region that is shifted by half a pixel gives another result.
  resample(view_of(picture), {0.5, 1, 0, kSize}, {0, 1, 0, kSize}, {kSize, kSize}, false, memory, out);
  EXPECT_NE(out, some.values);
}

}  // namespace
}  // namespace lockstep::nn
